"""A bundle behind a server: model repositories for Triton, and the KServe protocol over Ray Serve."""
