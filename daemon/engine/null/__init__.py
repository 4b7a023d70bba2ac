"""A model that computes nothing: scripted or fixed logits at no cost, or at the cost a profile says.

It stands in for the arithmetic alone; scheduler, page table, samplers and grammars above it are the real ones. Benches use it
to run scheduling at GPU speed and beyond, tests to play exact outputs and faults.
"""
