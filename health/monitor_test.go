package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// monitored is a monitor over a host that the test controls.
type monitored struct {
	t *testing.T
	*Monitor
	kernel chan host.Record
	log    bytes.Buffer // its warnings; to read once it has ended

	mu      sync.Mutex
	samples []collectors.Sample
	events  []incident.Event
	told    []Alert
	stop    func()
}

// monitor starts a monitor with its state in dir, in a bubble of synctest, until the end of the test. It has all
// checks, or these.
func monitor(t *testing.T, dir string, s Settings, checks ...*Check) *monitored {
	t.Helper()
	m := &monitored{t: t, kernel: make(chan host.Record, 8192)}
	m.is(on("0", collectors.Up, 1), on("0", links.PCIDevicePresent, 1, "0000:9b:00.0", "gpu"),
		on("0", device.TemperatureMargin, 20), on("0", device.Energy, 100, "gpu"))
	m.Monitor = NewMonitor(Options{
		Checks:  checks,
		Samples: func() []collectors.Sample { m.mu.Lock(); defer m.mu.Unlock(); return slices.Clone(m.samples) },
		Kernel: func(ctx context.Context, each func(host.Record)) error {
			for {
				select {
				case r, ok := <-m.kernel:
					if !ok {
						return errors.New("no kernel log")
					}
					each(r)
				case <-ctx.Done():
					return nil
				}
			}
		},
		Process: func(pid int, at time.Time) (host.Process, bool) { return python(pid), true },
		Stays: func(string) []collectors.Stay {
			return []collectors.Stay{{Process: python(1234)}}
		},
		Record: func(e incident.Event) { m.mu.Lock(); defer m.mu.Unlock(); m.events = append(m.events, e) },
		Tell:   func(a []Alert) { m.mu.Lock(); defer m.mu.Unlock(); m.told = append(m.told, a...) },
		Load:   idle, // the resources of other tests are not the agent's
		Store:  Store{Dir: dir}, Boot: "boot-1", Node: "node7",
		Log: slog.New(slog.NewTextHandler(&m.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, s)
	m.stop = fixture.Running(t, m.Run)
	time.Sleep(4 * time.Second) // of synctest's clock: the kernel's log has been read by then
	synctest.Wait()
	return m
}

// python returns a process of a pod.
func python(pid int) host.Process {
	return host.Process{PID: pid, Comm: "python3", Start: uint64(pid), Workload: &host.Workload{Key: "pod:a/b/c",
		Kind: host.KindPod, Namespace: "a"}}
}

// is sets the host's samples.
func (m *monitored) is(samples ...collectors.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples = samples
}

func (m *monitored) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// logs adds a line to the kernel's log.
func (m *monitored) logs(sequence uint64, text string) {
	m.kernel <- host.Record{Priority: 4, Sequence: sequence, Time: time.Now(), Text: text}
}

// alerts returns the names of firing alerts, according to the last notifications.
func (m *monitored) alerts() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	firing := map[string]bool{}
	for _, a := range m.told {
		if a.Ends.IsZero() {
			firing[a.Labels["alertname"]+"/"+a.Labels["severity"]] = true
		} else {
			delete(firing, a.Labels["alertname"]+"/"+a.Labels["severity"])
		}
	}
	var all []string
	for name := range firing {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// of returns the events that match.
func (m *monitored) of(f func(incident.Event) bool) (all []incident.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		if f(e) {
			all = append(all, e)
		}
	}
	return all
}

const xid79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."

func TestFaultIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, "", Settings{Labels: map[string]string{"cluster": "a"}})
		m.pass(300 * time.Millisecond) // between two passes
		m.logs(10, xid79)
		m.pass(company + time.Millisecond)
		fixture.Equal(t, m.alerts(), "GPULost/emergency", "%v after the kernel's line", company)
		m.Event(collectors.Event{Time: time.Now(), GPU: gpu.ID{Index: 0, UUID: "GPU-0"}, Type: "xid", Code: 79})
		m.pass(10 * time.Second)
		incidents := m.of(func(e incident.Event) bool { return e.Kind == incident.KindIncident })
		last := incidents[len(incidents)-1]
		if ids := slices.CompactFunc(incidents, func(a, b incident.Event) bool { return a.ID == b.ID }); len(
			ids) != 1 || len(last.Sources) != 2 || last.PID != 1234 || last.Workload != "pod:a/b/c" ||
			last.Node != "node7" || last.Boot != "boot-1" {
			t.Errorf("%+v", incidents)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		a := m.told[0]
		fixture.If(t, a.Labels["cluster"] != "a" || a.Labels["node"] != "node7" || a.Labels["source"] != "gpusteward" ||
			a.Labels["gpu"] != "0" || a.Labels["uuid"] != "GPU-0" || a.Annotations["pid"] != "1234" ||
			!strings.HasSuffix(a.Annotations["runbook_url"], "#gpulost"), "%+v", a)
	})
}

func TestLatchedFaultSurvivesARestartUntilAck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, dir, Settings{})
		m.logs(10, xid79)
		m.pass(time.Second)
		m.stop()

		m = monitor(t, dir, Settings{})
		m.logs(10, xid79) // the ring is read from its start again
		m.pass(10 * time.Minute)
		fixture.Equal(t, m.alerts(), "GPULost/emergency", "10 minutes after a restart")
		fixture.Equal(t, len(m.of(func(e incident.Event) bool { return e.Kind == incident.KindIncident })), 0,
			"an old line of the ring is an incident again")
		fixture.Must(t, m.Ack(t.Context(), "gpu_lost", incident.Entity{GPU: "0"}, "uid 0"))
		m.pass(time.Second)
		acks := m.of(func(e incident.Event) bool { return e.Kind == incident.KindAck })
		if len(acks) != 1 || !strings.Contains(acks[0].Message, "uid 0") || m.alerts() != "" ||
			m.Verdict().Status != incident.OK {
			t.Errorf("after the ack: %+v, %q, %v", acks, m.alerts(), m.Verdict().Status)
		}
		err := m.Ack(t.Context(), "gpu_lost", incident.Entity{GPU: "0"}, "uid 0")
		fixture.If(t, !errors.Is(err, errNotLatched), "a second ack: %v", err)
		m.stop()

		m = monitor(t, dir, Settings{})
		m.pass(time.Minute)
		fixture.Equal(t, m.alerts(), "", "an acknowledged alert came back")
		m.logs(11, xid79)
		m.pass(time.Second)
		fixture.Contains(t, m.alerts(), "GPULost", "lost again")
	})
}

// TestLogKeysAreUnique checks the log lines about changes of health: no key occurs twice, and shadow mode never warns.
func TestLogKeysAreUnique(t *testing.T) {
	for _, enabled := range [][]string{nil, {"slow"}} {
		var log bytes.Buffer
		m := NewMonitor(Options{
			Log: slog.New(slog.NewJSONHandler(&log,
				&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.MessageKey {
						a.Key = "message" // as in the agent's logger
					}
					return a
				}}))}, Settings{})
		real, shadow := *hotCheck, *hotCheck
		shadow.ID, shadow.Shadow = "slow", true
		w := newWorld(t, &real, &shadow)
		w.engine.Tune(Settings{EnableAlerts: enabled}, w.engine.memory.now)
		for _, e := range w.steps(3, hotAt(-1)) {
			fixture.Equal(t, e.Shadow, e.Check == "slow" && enabled == nil, "enabled %v: the event %+v", enabled, e)
			m.say(e)
		}
		levels := map[string]string{}
		for line := range strings.Lines(log.String()) {
			keys := map[string]bool{}
			for _, key := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(line, -1) {
				fixture.Equal(t, keys[key[1]], false, "the key %s is there twice: %s", key[1], line)
				keys[key[1]] = true
			}
			var l struct{ Level, Check, Finding, Message string }
			err := json.Unmarshal([]byte(line), &l)
			fixture.If(t, err != nil || l.Message != "health changed" ||
				l.Finding != "GPU 0 has -1 left.", "%v: %s", err, line)
			levels[l.Check] = l.Level
		}
		want := map[string]string{"hot": "WARN", "slow": "INFO"}
		if enabled != nil {
			want["slow"] = "WARN"
		}
		fixture.If(t, !maps.Equal(levels, want), "enabled %v: the levels are %v, want %v", enabled, levels, want)
		for _, f := range w.engine.Findings() {
			fixture.Equal(t, f.Shadow, f.Check == "slow" && enabled == nil, "enabled %v: %+v", enabled, f)
		}
	}
}

func TestShadowChecksAlertWhenTheyAreTurnedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, "", Settings{})
		m.is(on("0", collectors.Up, 1), on("0", derived.PeerClockRatio, .5), on("0", device.TemperatureMargin, 20))
		m.pass(2 * time.Minute)
		if f := m.Verdict().Findings; len(f) == 0 || f[0].Check != "slow_gpu" || !f[0].Shadow || m.alerts() != "" ||
			m.Verdict().Status > incident.Suspect {
			t.Errorf("in shadow: %+v, %q, %v", f, m.alerts(), m.Verdict().Status)
		}
		m.Configure(Settings{EnableAlerts: []string{"slow_gpu"}})
		m.pass(time.Second)
		fixture.Contains(t, m.alerts(), "GPUSlowOutlier/critical", "turned on")
		m.Configure(Settings{})
		m.pass(time.Second)
		fixture.Equal(t, m.alerts(), "", "turned off")
	})
}

// TestFloodIsCountedAndHarmless has programs cause two faults without end. Another one that comes last is seen.
func TestFloodIsCountedAndHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, "", Settings{})
		xid := func(code int) {
			m.Event(collectors.Event{Time: time.Now(), GPU: gpu.ID{Index: 0, UUID: "GPU-0"}, Type: "xid", Code: uint64(code)})
		}
		for i := range 3 * mostQueue {
			xid(13 + i%2)
		}
		xid(79)
		m.pass(5 * time.Second)
		fixture.Contains(t, m.alerts(), "GPULost", "the alerts")
		if e := m.of(func(e incident.Event) bool { return e.Kind == incident.KindIncident }); len(e) == 0 ||
			len(e) > 100 {
			t.Errorf("%d records of two incidents", len(e))
		}
		if !strings.Contains(m.alerts(), "TelemetryLoss") {
			t.Errorf("%d observations were dropped, and the alerts are %q", m.dropped.Load(), m.alerts())
		}
	})
}

func TestWithoutAKernelLogTheDriverIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, "", Settings{})
		close(m.kernel)
		m.pass(time.Minute)
		m.Event(collectors.Event{Time: time.Now(), GPU: gpu.ID{Index: 0, UUID: "GPU-0"}, Type: "xid", Code: 79})
		m.pass(time.Minute)
		got := m.alerts()
		fixture.If(t, !strings.Contains(got, "GPULost") || strings.Contains(got, "TelemetryLoss"), "%q", got)
	})
}

// TestKernelLogWaitsForTheGPUs holds that the kernel's lines are read once
// the places of the GPUs are known, or after a while if they never are.
func TestKernelLogWaitsForTheGPUs(t *testing.T) {
	for there, want := range map[time.Duration]time.Duration{0: beat, 2 * beat: 3 * beat, time.Hour: warmUp} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithTimeout(t.Context(), 2*warmUp)
			defer end()
			began, read := time.Now(), time.Duration(-1)
			m := NewMonitor(Options{
				Samples: func() []collectors.Sample {
					if time.Since(began) < there {
						return nil
					}
					return []collectors.Sample{on("0", collectors.Up, 1)}
				},
				Kernel: func(ctx context.Context, _ func(host.Record)) error {
					read = time.Since(began)
					<-ctx.Done()
					return nil
				},
				Log: slog.New(slog.DiscardHandler),
			}, Settings{})
			if err := m.Run(ctx); err != nil || read < want-beat || read > want+beat/5 {
				t.Errorf("a GPU is there after %v: the log is read after %v, want about %v (%v)", there, read, want, err)
			}
		})
	}
}

// TestKernelLogIsRetried holds that the pause after a failure doubles up to a minute, and is a second again after the
// log was read for a minute. The first failure of each row is logged.
func TestKernelLogIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		reads := []time.Duration{0, 0, 59 * time.Second, 0, 0, 0, 0, 0, time.Minute, 0, time.Hour, 0}
		want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 1, 2, 1}
		var pauses []time.Duration
		var ended time.Time
		var log strings.Builder
		m := NewMonitor(Options{
			Samples: func() []collectors.Sample { return []collectors.Sample{on("0", collectors.Up, 1)} },
			Kernel: func(context.Context, func(host.Record)) error {
				if !ended.IsZero() {
					pauses = append(pauses, time.Since(ended)/time.Second)
				}
				if len(pauses) == len(want) {
					time.Sleep(time.Minute) // the end is no failure
					end()
					return nil
				}
				time.Sleep(reads[len(pauses)])
				ended = time.Now()
				return errors.New("no kernel log")
			},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		}, Settings{})
		err := m.Run(ctx)
		fixture.If(t, err != nil || !slices.Equal(pauses, want), "pauses of %d s, want %d (%v)", pauses, want, err)
		fixture.Equal(t, strings.Count(log.String(), "the kernel's log cannot be read"), 3,
			"it is logged … times:\n%s", log.String())
	})
}

func TestNoReadingsAreUnknown(t *testing.T) {
	m := NewMonitor(Options{}, Settings{})
	v := m.Verdict()
	fixture.If(t, v.Status != incident.Unknown || v.Reason == "", "before the first look: %+v", v)
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, "", Settings{})
		fixture.Equal(t, m.Verdict().Status, incident.OK, "a GPU that is well")
		m.is(on("0", collectors.Up, 0), on("0", collectors.WorkerStuck, 1, "late"))
		if m.pass(2 * time.Second); m.Verdict().Status != incident.Unknown ||
			m.Verdict().GPUs[0].Status != incident.Unknown {
			t.Errorf("a GPU that does not answer: %+v", m.Verdict())
		}
		m.is()
		if m.pass(2 * time.Second); m.Verdict().Status != incident.Unknown {
			t.Errorf("no GPU: %+v", m.Verdict())
		}
	})
}

func TestMonitorFollowsTheReadInterval(t *testing.T) {
	for every, want := range map[time.Duration]int{0: 60, 100 * time.Millisecond: 60, 3 * time.Second: 20,
		10 * time.Second: 12} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithTimeout(t.Context(), time.Minute+time.Millisecond)
			defer end()
			judged := 0
			o := Options{Samples: func() []collectors.Sample { judged++; return nil }, Log: slog.New(slog.DiscardHandler)}
			if every > 0 {
				o.Beat = func() time.Duration { return every }
			}
			if err := NewMonitor(o, Settings{}).Run(ctx); err != nil || judged != want {
				t.Errorf("readings change every %v: judged %d times in a minute, want %d (%v)", every, judged, want, err)
			}
		})
	}
}

func TestMonitorsInOneProcessShareItsUse(t *testing.T) {
	uses := func(of string, sharing int) float64 {
		m := NewMonitor(Options{Sharing: sharing, Log: slog.New(slog.DiscardHandler)}, Settings{})
		m.begin(time.Now())
		m.usage = usage{at: time.Now().Add(-time.Hour), cpu: -100 * time.Hour} // far more than this test itself uses
		for _, s := range m.account(time.Now()) {
			if s.Metric == Pressure && s.Labels[0] == of {
				return s.Value
			}
		}
		return -1
	}
	for _, of := range []string{"memory", "processor"} {
		one, of100 := uses(of, 0), uses(of, 100)
		if ratio := one / of100; ratio < 50 || ratio > 200 {
			t.Errorf("one monitor uses %v of its %s, one of a hundred %v", one, of, of100)
		}
	}
}

// TestChangedStateIsSaved holds that a change is saved at once, and an unchanged state once a minute.
func TestChangedStateIsSaved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, dir, Settings{})
		written := func() time.Time {
			var k kept
			fixture.Must(t, (&Store{Dir: dir, ReadOnly: true}).Load(&k))
			return k.Engine.Time
		}
		for range 3 {
			before := written()
			m.pass(time.Until(before.Add(saveEach)) - beat)
			got := written()
			fixture.If(t, !got.Equal(before), "%v after the last time it is written again", got.Sub(before))
			m.pass(3 * beat)
			fixture.If(t, written().Equal(before), "it is not written for a minute")
		}
		m.pass(20 * time.Second)
		m.logs(10, xid79)
		m.pass(2 * beat)
		fixture.AtMost(t, time.Since(written()), 2*beat, "a fault is not written for")
	})
}

// TestAcknowledgedMissingGPUIsForgotten holds that the rest of the agent
// forgets a GPU whose removal was acknowledged, and no other.
func TestAcknowledgedMissingGPUIsForgotten(t *testing.T) {
	for check, want := range map[string][]string{missingCheck: {"GPU-0"}, "gpu_lost": nil} {
		var forgotten []string
		m := NewMonitor(Options{Forget: func(uuid string) { forgotten = append(forgotten, uuid) },
			Log: slog.New(slog.DiscardHandler)}, Settings{})
		latched := *lostCheck
		latched.ID = check
		w := newWorld(t, &latched)
		w.steps(1, lost()...)
		m.engine = w.engine
		fixture.Must(t, m.acknowledge(ack{check: check, entity: incident.Entity{GPU: "0"}}))
		fixture.EqualSlices(t, forgotten, want, "%s: forgotten are", check)
	}
}

// TestPortAboveSeveralGPUs holds that the kernel's message about a port of which several GPUs are blames none of them.
func TestPortAboveSeveralGPUs(t *testing.T) {
	w := guard(newSite(worldRow{"style": "ports", "boards": "h100", "work": ""}, 3))
	w.pass()
	w.site.line("pcieport 0000:00:01.1: DPC: containment event, status:0x1f11 source:0x0000", nil)
	for range 3 {
		w.pass()
	}
	quiet(t, w.monitor.engine, "after the message")
}
