"""The gallery is cached by content: of its scripts, which sphinx-gallery sees to, and of the package they use."""

import hashlib


def forget_pictures_of_other_code(pages, package):
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".safetensors"):
            digest.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    stamp = pages / ".package"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        for made in pages.rglob("*.md5"):
            made.unlink()
        pages.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


def forget_pages_without_a_script(pages, scripts):
    there = {script.stem for script in scripts.glob("*.py")}
    for page in pages.glob("plot_*.*"):
        if page.name.partition(".")[0] not in there:
            page.unlink()
