"""The runtimes that execute a bundle's programs; each loads its library when it is opened."""
