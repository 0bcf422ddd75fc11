"""QMIX and VDN for groups of agents. Begin with `qmix`, then `network`; `learner` extends the DQN learner."""
