"""How fast the engine samples and trains, alone and compared with other libraries."""
