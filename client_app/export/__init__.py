"""Personal networks for use elsewhere: ``python -m client_app.export``.

A folder with the weights and a model card, the whole network as a ``torch.export``
program, and ONNX segments between the exits with a runner that leaves early.
"""
