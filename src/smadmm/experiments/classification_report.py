"""stub"""
def report(*a): return ""
def draw(*a): pass
