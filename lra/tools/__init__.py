"""What looks into a trained model, or reckons without one."""
