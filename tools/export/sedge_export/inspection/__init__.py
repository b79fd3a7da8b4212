"""The model run eagerly, before anything is compiled: what no program could express is refused here."""
