"""What measures and attacks the broker: benchmarks, chaos, attacks, fuzzing, and the SDKs' own tests."""
