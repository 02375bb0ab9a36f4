"""The name under which engines look for their own backend. Put this folder's parent on PYTHONPATH only where spanpool is to answer them."""
