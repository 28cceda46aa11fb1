# Two commands: make run, make test; CI runs make test-all. The rest is for those
# who change things.
SHELL       := /bin/bash
VERSION     ?= $(shell deploy/package/version.sh)
REVISION    := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
PKG         := github.com/prometheus/common/version
LDFLAGS     := -s -w -X $(PKG).Version=$(VERSION) -X $(PKG).Revision=$(REVISION)
# go-nvml wraps functions that NVIDIA has since deprecated; its compiler
# warnings are not for whoever builds this.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
BENCHTIME   ?= 1s
DAYS        ?= 1000
HOURS       ?= 24
# The tests of the whole program.
WHOLE       := ./internal/integration

.PHONY: build hook run test test-all test-timed test-shares test-gpu mutants mutants-health truth day bench sizing lint rules generate check clean tools page test-servers test-deploy package image demo pictures pictures-dashboards

build:
	@go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o gpusteward .

# The library that programs run under: see `gpusteward exec`.
hook:
	@$(MAKE) --no-print-directory -s -C enforcer/hook

run: build hook
	@if [ -e /dev/nvidiactl ]; then \
		echo "NVIDIA driver found: reading this host's GPUs, http://localhost:9836"; \
		exec ./gpusteward $(ARGS); \
	else \
		echo "No NVIDIA driver here: these GPUs are SIMULATED (--demo), http://localhost:9836"; \
		exec ./gpusteward --demo $(ARGS); \
	fi

# The agent on simulated GPUs, with Prometheus and Alertmanager, until Ctrl-C.
demo: build
	@exec deploy/demo/demo.sh

# A lane is the tests in the files that carry its build tag, *_LANE_test.go:
#   long    hours and days of simulated time, hundreds of hosts, sanitizers
#   timed   promised times and shares of true time: alone, without the race detector
#   tools   what Prometheus's and Alertmanager's own programs judge
in    = find . -name '*_$(1)_test.go'
names = ^($(shell sed -nE 's/^func (Test[A-Za-z0-9_]*).*/\1/p' `$(in)` | sort -u | paste -sd'|'))$$
lane  = go test -tags $(1) -timeout 30m -run '$(names)' $$($(in) -printf '%h\n' | sort -u)

# The tests that anyone runs: without a GPU, without root, without other programs.
test:
	@test -z "$$(gofmt -l .)" || { echo "gofmt wants changes in:"; gofmt -l .; exit 1; }
	@go vet ./...
	@go test -race -timeout 20m -shuffle=on ./...

# Everything that needs no GPU; what needs one is compiled, so that it stays
# whole. Installs what it needs.
test-all: tools test
	@go vet -tags gpu ./... && go vet -tags long,timed,tools ./... && go vet -tags bench $(WHOLE) && go vet -tags kubelet ./... && go vet -tags servers,bench $(WHOLE) ./dashboards && go vet -tags pictures $(WHOLE) && go vet -tags deploy ./deploy/...
	@$(call lane,long)
	@$(call lane,tools) -race
	@go test -race -tags kubelet -run Kubelet ./collectors/host
	@$(MAKE) --no-print-directory rules test-servers test-timed test-deploy

# Promised times, and shares of true time and memory on a simulated GPU that real
# processes share: alone, because other work takes time from them.
test-timed:
	@$(call lane,timed) -count=1 -p 1 -v | grep -v -e '^=== ' -e '^ *--- PASS'; exit $${PIPESTATUS[0]}

# The same of the enforcer alone: shares, deaths, gangs.
test-shares:
	@go test -tags timed -timeout 30m -run '$(call names,timed)' -count=1 -v ./enforcer | grep -v -e '^=== ' -e '^ *--- PASS'; exit $${PIPESTATUS[0]}

# On a machine with an NVIDIA GPU.
test-gpu:
	@$(MAKE) --no-print-directory hook
	@go test -tags gpu -run '^TestGPU' -v -count=1 -timeout 60m -p 1 $(WHOLE) ./collectors ./health/diag ./enforcer

# Small changes of code that its tests do not notice: less than 95 % noticed
# fails, of health's 90 %. Of the enforcer's pure packages all changes are tried
# (ledger: 80 s; schedule: half an hour), of health's MUTANTS that are drawn by
# SEED, by the tests that are quick (a quarter of a minute of a core each).
MUTANTS     ?= 128
SEED        ?= 1
MUTATE      := go -C deploy/tools run ./mutate -C $(CURDIR)
mutants: mutants-health
	@$(MUTATE) -min=95 ./enforcer/schedule ./enforcer/ledger

# health/diag is not asked: much of it only runs on a GPU.
mutants-health:
	@$(MUTATE) -min=90 -n=$(MUTANTS) -seed=$(SEED) ./health ./health/journal ./health/notifier ./alerts

# False alarms of so many simulated days of healthy hosts, by check, and of so
# many of rough ones by another author, by style: STYLE is one of them.
STYLE ?=
truth:
	@GOGC=400 go test -tags long -count=1 -timeout 24h -run '^(TestHealthyHostsAreQuiet|TestWorldIsQuiet)$$' -v ./health -args -truth.days=$(DAYS) -world.days=$(DAYS) -truth.style='$(STYLE)'

# The enforcer over 100 simulated tenants, for so many hours.
day:
	@go test -tags long -count=1 -timeout 24h -run '^TestDay$$' -v ./enforcer -args -day.hours=$(HOURS)

bench:
	@go test -run '^$$' -bench . -benchtime $(BENCHTIME) -benchmem ./collectors/... ./exporter ./health/... ./enforcer/...
	@$(MAKE) --no-print-directory -s -C enforcer/hook bench
	@go test -tags bench -run TestFigures -v -count=1 $(WHOLE) | grep -v -e "^=== " -e "^--- "

# What one Prometheus needs for 200 hosts, for docs/fleet.md: 20 minutes, of 2
# cores and 4 GiB.
sizing: tools
	@go test -tags servers,bench -run '^TestSizing$$' -v -count=1 -timeout 1h $(WHOLE) | grep -v -e '^=== ' -e '^ *--- '; exit $${PIPESTATUS[0]}

# What the tests hold the output against, as command:Debian package: Prometheus
# and Alertmanager with their tools, a browser and what drives it, what judges
# and takes the packages, units and manifests, and what makes and runs the hook
# for aarch64 (whose C library has no command, and comes with the compiler). No
# daemon is started: for as long as the installation takes, a policy denies it,
# unless the host has a policy of its own.
TOOLS := promtool:prometheus prometheus-alertmanager:prometheus-alertmanager amtool:prometheus-alertmanager chromium:chromium node:nodejs npm:npm \
	systemd-analyze:systemd strace:strace lintian:lintian rpm:rpm mandoc:mandoc zsh:zsh ip:iproute2 mmdebstrap:mmdebstrap \
	slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge buildah:buildah runc:runc \
	qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross
PAGE_TESTS := exporter/page/test
tools:
	@wanted=""; for t in $(TOOLS); do type $${t%%:*} >/dev/null 2>&1 || wanted="$$wanted $${t##*:}"; done; \
	if [ -n "$$wanted" ]; then echo "installing what tests need (Debian packages$$wanted)"; \
		policy=/usr/sbin/policy-rc.d; \
		if [ ! -e $$policy ]; then printf '#!/bin/sh\nexit 101\n' >$$policy && chmod +x $$policy && trap "rm -f $$policy" EXIT; fi; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$wanted) >/tmp/gpusteward-apt.log 2>&1 \
		|| { tail -n 20 /tmp/gpusteward-apt.log; exit 1; }; fi
	@cmp -s $(PAGE_TESTS)/package-lock.json $(PAGE_TESTS)/node_modules/.installed || { echo "installing what drives the browser (npm packages playwright-core, axe-core)"; \
		out=$$(npm --prefix $(PAGE_TESTS) ci --silent --ignore-scripts --no-audit --no-fund 2>&1) && cp $(PAGE_TESTS)/package-lock.json $(PAGE_TESTS)/node_modules/.installed || { echo "$$out"; exit 1; }; }

# The live page's pictures, of a simulated host whose charts are full by then.
AFTER ?= 15m
pictures: tools
	@echo "the pictures are made after $(AFTER) of the simulated host"
	@go test -tags pictures -run '^TestPictures$$' -count=1 -timeout 1h $(WHOLE) -args -pictures.after=$(AFTER) && ls -l docs/page-*.png

lint:
	@go tool -modfile=deploy/tools/go.mod golangci-lint run ./...

# The rules on Prometheus 3 too, and the scrape configurations; the tests have
# run them on the installed promtool, Debian's 2.42, but for Kubernetes, which
# that is built without. The first time builds promtool: minutes.
PROMTOOL3 := go tool -modfile=deploy/tools/go.mod promtool
rules:
	@out=$$($(PROMTOOL3) check rules alerts/*.rules.yml 2>&1 && $(PROMTOOL3) test rules alerts/*.rules.test.yml 2>&1 \
		&& $(PROMTOOL3) check config --syntax-only deploy/prometheus/{file_sd,http_sd,kubernetes}.yml 2>&1) || { echo "$$out"; exit 1; }

# What takes real servers: the dashboards' queries on Prometheus 2 and 3, the
# chain from a fault to a receiver, make demo, the page in a browser. Alone, because it takes its time
# from whatever else is measured. The first time builds Prometheus 3: minutes.
test-servers:
	@PROMETHEUS_3=$$(go tool -modfile=deploy/tools/go.mod -n prometheus) go test -count=1 -tags servers -run '^(TestQueries|TestChain.*|TestHurried.*|TestDemo.*|TestPage)$$' -p 1 $(WHOLE) ./dashboards

# The Debian and the RPM package, in dist/: two builds of one commit are the same.
package: build hook
	@deploy/package/build.sh

# The container image, in dist/ as an OCI archive.
image: build hook
	@deploy/container/build.sh

# What is shipped: units, packages, image, manifests, scripts for Slurm. As
# root, with the tools that judge them; one after the other.
test-deploy: package
	@go test -count=1 -tags deploy -p 1 ./deploy/...
	@go -C deploy/kubernetes test -count=1 ./...

# Files that are written by programs: the guarded NVML calls, the reference, the
# alerting rules with their tests and the runbook, the dashboards, Kubernetes's
# manifests.
generate: build
	@go generate ./...
	@go test -count=1 -run 'TestReference|TestGolden' ./collectors ./alerts ./dashboards ./exporter -update >/dev/null
	@go test -count=1 -run 'TestReference' $(WHOLE) -update >/dev/null
	@go -C deploy/kubernetes test -count=1 -run 'TestManifests' . -update >/dev/null
	@git --no-pager diff --stat

# The chart library of the live page, in the version that its package.json
# says: for who changes that. A test holds the files against SHA256SUMS.
page:
	@dir=$$(mktemp -d) && trap 'rm -rf '"$$dir" EXIT && cp exporter/page/package.json $$dir && npm --prefix $$dir install --silent --no-package-lock --ignore-scripts \
		&& from=$$dir/node_modules/uplot && cd exporter/page/vendor && cp $$from/LICENSE $$from/dist/uPlot.iife.min.js $$from/dist/uPlot.min.css . \
		&& chmod 644 * && sha256sum LICENSE uPlot.iife.min.js uPlot.min.css >SHA256SUMS && git --no-pager diff --stat -- .
# Pictures of the dashboards, with Grafana's own panel components: needs Node,
# npm, Chromium and Prometheus, and some three minutes.
pictures-dashboards: build
	@cd dashboards/pictures && npm ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund --silent
	@node dashboards/pictures/make.mjs

check: lint generate
	@git diff --exit-code >/dev/null || { echo "generated files were stale; commit them"; exit 1; }
	@$(MAKE) test-all

clean:
	@rm -rf gpusteward dist
	@$(MAKE) --no-print-directory -s -C enforcer/hook clean
