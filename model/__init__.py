"""The PyTorch reference: configuration, layers, block, decoder and checkpoints."""
