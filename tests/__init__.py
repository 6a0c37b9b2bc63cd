import gc

gc.disable()  # until everything is imported: see pytest_collection_finish
