"""What every room agrees on: element types, shapes, the bundle, errors, progress."""
