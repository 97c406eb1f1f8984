"""The second engine: DeepSpeed runs ZeRO, Brimful keeps model, loss, optimizer, loop and results.

``config`` writes DeepSpeed's JSON without torch, ``engine`` hands a built model over, ``step`` runs
its part of a training step, ``whole`` gathers what it has parted. DeepSpeed is imported in
``engine`` and ``whole`` only, and only when it runs.
"""
