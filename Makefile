# Start with make run and make test. CI runs make test-all. The other targets are for developers.
SHELL       := /bin/bash
VERSION     ?= $(shell deploy/package/version.sh)
REVISION    := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
PKG         := github.com/prometheus/common/version
# The time of the commit, not of the build: two builds are the same.
DATE        := $(shell TZ=UTC0 date -d "@$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}" +%FT%TZ)
# Functions are aligned to 16 bytes as on arm64, not to 32: the program is 0.26 MB smaller.
LDFLAGS     := -s -w -funcalign=16 -X $(PKG).Version=$(VERSION) -X $(PKG).Revision=$(REVISION) -X $(PKG).BuildDate=$(DATE)
# go-nvml wraps functions that NVIDIA has since deprecated; the warnings do not concern this
# project.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
# What is compiled does not depend on the directory, so another clone finds it in the cache.
export GOFLAGS := $(GOFLAGS) -trimpath -buildvcs=false
# Tests collect garbage rarely.
test test-long test-nightly truth: export GOGC := 400
BENCHTIME   ?= 1s
DAYS        ?= 1000
HOURS       ?= 24
# The tests of the whole program.
WHOLE       := ./internal/integration

.PHONY: build otlp package-otlp hook ready run demo test test-race test-faulty test-all test-long test-tools \
	test-nightly test-timed test-shares test-gpu test-servers test-deploy matrix mutants mutants-health truth day \
	bench sizing tools pictures pictures-dashboards lint rules binaries kube package image release generate page check \
	clean prometheus3

GOBUILD      = go build -ldflags '$(LDFLAGS)'
build:
	@$(GOBUILD) -o gpusteward .

# The program that pushes the metrics to OpenTelemetry, for the architectures in ARCH, and its packages in
# dist/otlp. It is static.
otlp:
	@set -e; for arch in $${ARCH:-amd64 arm64}; do \
		CGO_ENABLED=0 GOARCH=$$arch go -C deploy/otlp build -ldflags '-s -w' -o $(CURDIR)/dist/$$arch/gpusteward-otlp .; done

package-otlp: build otlp
	@deploy/otlp/build.sh

# The library that governs programs: see `gpusteward exec`.
hook:
	@$(MAKE) --no-print-directory -s -C enforcer/hook

# build and hook, for somebody who waits for them: after PATIENCE seconds it says why.
PATIENCE    ?= 3
ready:
	@$(MAKE) --no-print-directory build hook & timeout $(PATIENCE) tail --pid=$$! -s 0.1 -f /dev/null \
		|| echo "Building gpusteward. The first build takes one to two minutes on two processors, later ones seconds."; \
		wait $$!

run: ready
	@if [ -e /dev/nvidiactl ]; then \
		echo "Found an NVIDIA driver: reading this host's GPUs"; \
		exec ./gpusteward $(ARGS); \
	else \
		echo "Found no NVIDIA driver: these GPUs are SIMULATED (--demo)"; \
		exec ./gpusteward --demo $(ARGS); \
	fi

# The agent on simulated GPUs, with Prometheus and Alertmanager, until Ctrl-C.
demo: ready
	@exec deploy/demo/demo.sh

# A lane is the set of tests in the files with its build tag, *_LANE_test.go:
#   long      simulated hours, hundreds of hosts, sanitizers
#   nightly   simulated days and worlds: too long for each change
#   timed     guaranteed latencies and shares of real time; these run alone, one with an Alertmanager
#   tools     tests that need the programs of Prometheus and Alertmanager, Python or root
# Most tests wait for a part of their time, so more of them run at once than there are processors.
GOTEST ?= go test
flags = -timeout $(1)m -parallel=8
in    = find . -name '*_$(1)_test.go'
names = ^($(shell sed -nE 's/^func (Test[A-Za-z0-9_]*).*/\1/p' `$(in)` | sort -u | paste -sd'|'))$$
lane  = $(GOTEST) -vet=off -tags $(1) $(call flags,30) -run '$(names)' $$($(in) -printf '%h\n' | sort -u)

# The default tests. They need Go, gcc and make, and no GPU, no root and no other program. A package that has not
# changed, nor what its tests read (fixture.ReadByOthers), is not tested again, unless SHUFFLE=-shuffle=on.
test:
	@test -z "$$(gofmt -l .)" || { echo "Not formatted by gofmt:"; gofmt -l .; exit 1; }
	@go vet ./...
	@$(GOTEST) -vet=off $(call flags,20) $(SHUFFLE) ./...

# The same tests under the race detector, of the packages that start goroutines; the simulated host does so in a test
# only. They take six times as long, so fewer of them run at once, and none of one goroutine (fixture.OneGoroutine).
test-race:
	@$(GOTEST) -vet=off -race -timeout 30m -parallel=4 -shuffle=on $$(grep -rlE --include='*.go' --exclude-dir={deploy,sim} \
		'^[[:space:]]+go (func|[A-Za-z.]+\()|\.Go\(' . | xargs dirname | sort -u)

# All tests that need no GPU, with a table of their seconds. Tests that need one are only compiled. Installs the
# required programs, as root.
test-all:
	@.ci/lanes

# Tests of the whole program in a namespace whose kernel log has every fault. Needs root.
test-faulty:
	@GPUSTEWARD_TEST_ON_FAULTY_MACHINE=1 $(GOTEST) -vet=off $(call flags,20) -count=1 $(WHOLE)

test-long:
	@$(call lane,long)

test-tools:
	@$(call lane,tools)

# Hours of tests. Run it before an issue that concerns them is called resolved.
test-nightly:
	@$(call lane,nightly) -timeout 12h -count=1 -v | grep -v '^=== '; exit $${PIPESTATUS[0]}
	@$(MAKE) --no-print-directory day

# Guaranteed latencies, and shares of time and memory on a simulated GPU that real processes
# share. Run it alone, because other work distorts the results.
test-timed:
	@$(call lane,timed) -count=1 -p 1

# The tests of test-timed in the enforcer: shares, deaths, gangs.
test-shares:
	@go test -tags timed -timeout 30m -run '$(call names,timed)' -count=1 -v ./enforcer \
		| grep -v -e '^=== ' -e '^ *--- PASS'; exit $${PIPESTATUS[0]}

# Tests on a machine with an NVIDIA GPU.
test-gpu:
	@$(MAKE) --no-print-directory hook
	@go test -tags gpu -run '^TestGPU' -v -count=1 -timeout 60m -p 1 $(WHOLE) ./collectors ./health/diag ./enforcer ./enforcer/suspend ./enforcer/backend

# The pace of programs that share this machine's GPUs, in each of several ways to share one. ARGS are flags of
# bench/matrix: ARGS=-h lists them.
matrix: hook
	@$(MAKE) --no-print-directory -s -C enforcer/hook stub
	@go run ./bench/matrix $(ARGS)

# Mutation tests. They fail if the tests notice less than 95 % of the mutants, or 90 % in health.
# In the enforcer's pure packages all mutants are tried (ledger: 80 s; schedule: half an hour). In
# health, SEED selects MUTANTS of them, and the quick tests judge them (15 s of a core each).
MUTANTS     ?= 128
SEED        ?= 1
MUTATE      := go -C deploy/tools run ./mutate -C $(CURDIR)
mutants: mutants-health
	@$(MUTATE) -min=95 ./enforcer/schedule ./enforcer/ledger

mutants-health:
	@$(MUTATE) -min=90 -n=$(MUTANTS) -seed=$(SEED) ./health ./health/derived ./health/diag ./health/incident \
		./health/journal ./health/notifier ./alerts

# False alarms of DAYS simulated days of healthy but rough hosts, by style. STYLE selects one style.
STYLE ?=
truth:
	@go test -tags long -count=1 -timeout 24h -v -run '^TestWorldIsQuiet$$' ./health \
		-args -truth.days=$(DAYS) -truth.style='$(STYLE)'

# The enforcer with 100 simulated tenants, for HOURS hours.
day:
	@go test -tags long -count=1 -timeout 24h -run '^TestDay$$' -v ./enforcer/response -args -day.hours=$(HOURS)

bench:
	@go test -run '^$$' -bench . -benchtime $(BENCHTIME) -benchmem ./exporter ./health ./enforcer/schedule
	@$(MAKE) --no-print-directory -s -C enforcer/hook bench
	@go run ./bench/agent scrapes pages

# The resources that one Prometheus needs for 200 hosts, for docs/fleet.md. Takes 20 minutes, 2
# cores and 4 GiB.
sizing: tools
	@go run ./bench/agent sizing

# The programs that the tests need, as command:Debian package: Prometheus and Alertmanager with
# their tools, a browser and its driver, Python, checkers of packages, units and manifests, and a compiler
# and an emulator for the hook on aarch64 (its C library has no command and is listed with the
# compiler). A policy keeps the installation from starting daemons, unless the host has a policy
# of its own.
TOOLS := promtool:prometheus prometheus-alertmanager:prometheus-alertmanager amtool:prometheus-alertmanager \
	chromium:chromium node:nodejs npm:npm /usr/bin/python3:python3 \
	systemd-analyze:systemd strace:strace lintian:lintian rpm:rpm mandoc:mandoc zsh:zsh ip:iproute2 \
	mmdebstrap:mmdebstrap slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge buildah:buildah runc:runc \
	qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross
PAGE_TESTS := exporter/page/test
tools:
	@wanted=""; for t in $(TOOLS); do type $${t%%:*} >/dev/null 2>&1 || wanted="$$wanted $${t##*:}"; done; \
	if [ -n "$$wanted" ]; then echo "Installing Debian packages for the tests:$$wanted"; \
		policy=/usr/sbin/policy-rc.d; \
		if [ ! -e $$policy ]; then \
			printf '#!/bin/sh\nexit 101\n' >$$policy && chmod +x $$policy && trap "rm -f $$policy" EXIT; fi; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$wanted) \
			>/tmp/gpusteward-apt.log 2>&1 || { tail -n 20 /tmp/gpusteward-apt.log; exit 1; }; fi
	@lock=$(PAGE_TESTS)/package-lock.json; installed=$(PAGE_TESTS)/node_modules/.installed; \
	cmp -s $$lock $$installed || { \
		echo "Installing npm packages for the browser tests: playwright-core, axe-core"; \
		out=$$(npm --prefix $(PAGE_TESTS) ci --silent --ignore-scripts --no-audit --no-fund 2>&1) \
			&& cp $$lock $$installed || { echo "$$out"; exit 1; }; }

# Pictures of the live page, taken after AFTER of a simulated host, when its charts are full.
AFTER ?= 15m
pictures: tools
	@echo "Taking the pictures after $(AFTER) of the simulated host"
	@go test -tags pictures -run '^TestPictures$$' -count=1 -timeout 1h $(WHOLE) -args -pictures.after=$(AFTER) \
		&& ls -l docs/page-*.png

# Lints and vets the files of all build tags.
LINTER := go tool -modfile=deploy/tools/go.mod golangci-lint
# With -trimpath, what cgo wrote comes from the cache, and names the files of another clone.
lint: export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS))
lint:
	@out=$$($(LINTER) run ./... 2>&1) || { echo "$$out"; exit 1; }

# Builds Prometheus 3 and its promtool, which takes minutes the first time. Of the service
# discoveries they have file, HTTP and Kubernetes: the others, of clouds, take longer than the rest.
PROMETHEUS3 := $(CURDIR)/dist/prometheus3
prometheus3:
	@mkdir -p $(PROMETHEUS3) && go build -modfile=deploy/tools/go.mod -tags remove_all_sd,enable_kubernetes_sd \
		-o $(PROMETHEUS3)/ github.com/prometheus/prometheus/cmd/{prometheus,promtool}

# Checks the rules and the scrape configurations with promtool 3. The tests use the installed
# promtool, Debian's 2.42, which is built without Kubernetes.
rules: prometheus3
	@PATH=$(PROMETHEUS3):$$PATH go test -vet=off -count=1 -tags tools -run '^TestPromtool$$' ./alerts
	@p=$(PROMETHEUS3)/promtool; out=$$($$p check config --syntax-only \
		deploy/prometheus/{file_sd,http_sd,kubernetes,dcgm_exporter}.yml 2>&1) || { echo "$$out"; exit 1; }

# Tests with real servers: the dashboards' queries on Prometheus 2 and 3, the chain from a fault
# to a receiver, make demo, the page in a browser.
test-servers: prometheus3
	@PROMETHEUS_3=$(PROMETHEUS3)/prometheus $(GOTEST) -vet=off $(call flags,30) -count=1 -tags servers \
		-run '^(TestQueries.*|TestChain.*|TestDemo.*|TestPage)$$' $(WHOLE) ./dashboards

# Packages and images are built for amd64 and arm64, or for the architectures in ARCH.
binaries package image: export GOBUILD := $(GOBUILD)

# Builds the program and the hook for each, in dist/.
binaries: build
	@deploy/binaries.sh

# Builds the Debian and RPM packages in dist/, reproducibly.
package: build
	@set -e; ARCH=$$(deploy/binaries.sh); export ARCH; deploy/package/build.sh

# Builds the container image in dist/, as an OCI archive with an image for each architecture, and
# dist/image.yaml, which names it to the chart. IMAGE is its repository, such as registry.example/gpusteward.
image: build
	@set -e; ARCH=$$(deploy/binaries.sh); export ARCH; $(MAKE) --no-print-directory kube; deploy/container/build.sh

# The agent's contact with Kubernetes, for the architectures in ARCH or those of the packages.
kube:
	@set -e; for arch in $${ARCH:-$$(cd dist && ls -d amd64 arm64 2>/dev/null)}; do \
		CGO_ENABLED=0 GOARCH=$$arch go -C deploy/kubernetes build -ldflags '-s -w' \
			-o $(CURDIR)/dist/$$arch/gpusteward-kube ./kube; done

# Everything of a release in dist/release, in one command from a clean clone: packages, programs, image and chart
# for amd64 and arm64, with checksums and a bill of materials (CONTRIBUTING.md, "Make a release"). IMAGE is the image's
# repository, BASE another base of it.
release:
	@export ARCH="amd64 arm64"; $(MAKE) --no-print-directory package package-otlp image && deploy/release/build.sh

# Tests of everything that is shipped: units, packages, image, manifests, scripts for Slurm. Needs
# root and the programs of make tools. The packages run one after the other.
test-deploy: package package-otlp kube
	@$(GOTEST) -vet=off -count=1 -tags deploy -p 1 ./deploy/...
	@cd deploy/kubernetes && $(GOTEST) -count=1 ./...
	@cd deploy/otlp && $(GOTEST) -count=1 ./...

# A command that says something only if it fails.
quietly = @out=$$($(1) 2>&1) || { echo "$$out"; exit 1; }

# Writes all generated files: the guarded NVML calls, the names of system calls, the reference, the
# alerting rules with their tests and the runbook, the dashboards, the links to both in the chart,
# the Kubernetes manifests.
generate: build
	@go generate ./...
	$(call quietly,go test -count=1 -run 'TestReference|TestGolden' ./collectors ./collectors/workloads ./health ./alerts ./dashboards ./exporter -update)
	$(call quietly,go test -count=1 -run 'TestReference' $(WHOLE) -update)
	@cd deploy/kubernetes/chart/files && ln -sf ../../../../{alerts/*.rules.yml,dashboards/gpusteward-*.json} . && find . -xtype l -delete
	$(call quietly,go -C deploy/kubernetes test -count=1 -run 'TestManifests' . -update)
	@git --no-pager diff --stat

# Updates the chart library of the live page to the version in package.json. A test compares the
# files with SHA256SUMS.
page:
	@dir=$$(mktemp -d) && trap 'rm -rf '"$$dir" EXIT && cp exporter/page/package.json $$dir \
		&& npm --prefix $$dir install --silent --no-package-lock --ignore-scripts \
		&& from=$$dir/node_modules/uplot && cd exporter/page/vendor \
		&& cp $$from/LICENSE $$from/dist/uPlot.iife.min.js $$from/dist/uPlot.min.css . \
		&& chmod 644 * && sha256sum LICENSE uPlot.iife.min.js uPlot.min.css >SHA256SUMS \
		&& git --no-pager diff --stat -- .

# Pictures of the dashboards, drawn by Grafana's own panel components. Needs Node, npm, Chromium
# and Prometheus, and takes about three minutes.
pictures-dashboards: build
	@cd dashboards/pictures && npm ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund --silent
	@node dashboards/pictures/make.mjs

check: generate
	@git diff --exit-code >/dev/null || { echo "Generated files were stale; commit them."; exit 1; }
	@$(MAKE) test-all

clean:
	@rm -rf gpusteward dist
	@$(MAKE) --no-print-directory -s -C enforcer/hook clean
