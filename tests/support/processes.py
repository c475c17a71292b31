"""Factories and processes from one flat list of options, for short tests."""

import fedsmp_tff


def factory(sparsifier, clients_per_round=3, seed=None, **mechanism):
  """A `FedSmpFactory`; `mechanism` are the fields of `Mechanism`."""
  return fedsmp_tff.FedSmpFactory(
      sparsifier, fedsmp_tff.Mechanism(clients_per_round, **mechanism), seed=seed
  )


def fed_smp(model, training, sparsifier, server_optimizer=None, seed=None, **options):
  """A `build_fed_smp` process; for `options` see `factory`."""
  return fedsmp_tff.build_fed_smp(
      model, training, factory(sparsifier, **options),
      server_optimizer=server_optimizer, seed=seed,
  )
