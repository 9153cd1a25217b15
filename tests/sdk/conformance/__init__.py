"""The conformance suite: one list of scenarios, run by a small program for each official SDK in the SDK's language.

| Module | Content |
|---|---|
| `scenarios.toml` | the list: names, groups, expected outcomes, and which SDK cannot do what |
| `explanations.toml` | why an outcome is not as expected, if known |
| `steps` | the steps of each scenario, the same for every SDK |
| `clients` | the operations in these steps: a bus, its senders and receivers, an administrator |
| `program` | the program of an SDK: a process that executes commands |
| `sdks` | the paths of these programs, and the versions of the SDKs |
| `world` | a broker for a scenario, and a clock that can be moved |
| `lane` | a process that runs scenarios of one SDK, one after the other |
| `suite` | all lanes side by side |
| `report` | the table, and the page of the documentation |

`python -m conformance` runs all scenarios; `make conformance` also installs what they require.
"""
