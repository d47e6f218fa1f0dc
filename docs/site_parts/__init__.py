"""What the site needs beyond Sphinx: each module is one small thing."""
