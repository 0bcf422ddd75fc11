"""QMIX: configuration, mixing network and learner."""
