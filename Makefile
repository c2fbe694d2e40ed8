.DEFAULT_GOAL := help
.PHONY: demo test lint report docs bench clean help

demo: ## Install into .venv, run the samples, draw a picture
	@scripts/demo.sh

test: ## ruff, mypy and the whole test suite, in .venv
	@scripts/test.sh

lint: ## ruff and mypy alone
	@scripts/test.sh lint

report: ## Long functions, large classes, lone modules, and tests of internals; fails nothing
	@python3 scripts/report.py

docs: ## Build the documentation into site/
	@scripts/docs.sh

bench: ## Install what the benchmarks need, and list them
	@scripts/bench.sh

clean: ## Remove .venv and everything that was built
	rm -rf .venv build dist site out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
