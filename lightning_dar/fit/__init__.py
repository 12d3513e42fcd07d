"""fit, validate and prepare, on LightningCLI."""
