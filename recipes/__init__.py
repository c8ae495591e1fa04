"""Ready recipes, by name: `blockforge build smollm2`."""
