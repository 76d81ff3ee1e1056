"""What the command line gains where the engine is installed too; only this package and the hooks know the engine."""
