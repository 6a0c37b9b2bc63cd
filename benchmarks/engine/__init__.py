"""How fast the engine samples and trains, alone and beside its peers."""
