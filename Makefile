# The verbs of this tree. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help demo demo-vllm measure-hits test engines build check bench asan tsan fuzz sim sim-mutations soak clean

help: ## list the verbs
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
demo: ## install what is missing, build, serve the real conversation trace to three tenants
	@scripts/demo
demo-vllm: ## install vLLM for CPUs (8 GB), build, let two tenants talk to two engines with the cache and without
	@scripts/demo_vllm
measure-hits: ## install vLLM for CPUs, build, time a hit against a cold run and the engine's own; 1 when one misses its bar
	@scripts/measure_hits
test: ## install what is missing, build, run every test but those with a real engine; KUBE=0: nor against a kube-apiserver
	@scripts/test
engines: ## install vLLM for CPUs, SGLang and a small model (8 GB), build, run the tests with a real serving engine
	@{ scripts/install_deps --engines || [ $$? -eq 3 ]; } && scripts/build && ctest --test-dir build --output-on-failure -L engine
build: ## install what is missing, build Release into build/bin
	@scripts/build
check: ## format, clang-tidy, thread-safety analysis, house rules, one minute of fuzzing a target
	@scripts/check
bench: ## every kvartal-bench figure of docs/CLAIMS.md
	@scripts/bench
fuzz: ## each fuzz target for FUZZ_SECONDS (default 60)
	@scripts/check fuzz
sim: ## the seeded simulator, seed after seed, for SECONDS (default 60)
	@scripts/sim
sim-mutations: ## bugs planted in the engine's source, one build each: the simulator has to find every one
	@python3 -B tests/sim/mutations.py
soak: ## simulator, crash states, kill -9, tenants on a failing disk, faults: each for SECONDS (default 600)
	@scripts/soak
asan: ## the tests under address and undefined-behaviour sanitizers (build-asan/)
	@scripts/test --sanitize address,undefined
tsan: ## the tests under the thread sanitizer (build-tsan/)
	@scripts/test --sanitize thread
clean: ## remove build/ and build-*/
	@rm -rf build build-*
