"""What plug-ins for federated-learning platforms share: settings, floors, schemes, keys, charges, and one round."""
