"""The main job on real data: column sums and a bootstrap of a matrix, by every door to its bytes.

Run it as ``python -m ramlace.demo``; ``--help`` lists its options.
"""
