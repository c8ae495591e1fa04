"""Run in a child process: compile some kernels and print the SHA-256 of what an engine would carry."""

import hashlib

from blockforge.plugins.listing import plugin_ptx

for name, arch in (("AddRMSNormQuantize", 90), ("GeGLUPacked", 80), ("QKNormRope", 120)):
    built = plugin_ptx(name, arch=arch)
    print(hashlib.sha256(f"{built.name} {built.shared} {built.ptx}".encode()).hexdigest())
