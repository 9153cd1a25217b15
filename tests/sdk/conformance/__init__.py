"""The conformance suite: one list of scenarios through every official SDK, each by a small program in its own language.

| Module | What it is |
|---|---|
| `scenarios.toml` | the list: names, groups, expected outcomes, and which SDK cannot do what |
| `explanations.toml` | why an outcome is not as expected, where that is known |
| `steps` | what each scenario does, in words that are the same for every SDK |
| `clients` | those words: a bus, its senders and receivers, an administrator |
| `program` | the program of an SDK: a process that does what it is told |
| `sdks` | where those programs are, and which version of the SDK they use |
| `world` | a broker for a scenario, and a clock that can be moved |
| `lane` | a process that runs scenarios of one SDK, one after the other |
| `suite` | all lanes side by side |
| `report` | the table, and the page of the documentation |

`python -m conformance` runs it all; `make conformance` sets up what that needs.
"""
