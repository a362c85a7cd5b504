"""Clients that mean harm, at a deployment of two coordinators, and who suffers beside them."""
