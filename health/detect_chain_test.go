package health

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/host"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A chain is the path from a GPU to an alert: the readers, the kernel's log, the monitor.
type chain struct {
	start   time.Time
	table   *host.Table
	host    *collectors.Host
	monitor *Monitor
	options Options
	events  func(collectors.Event)

	mu   sync.Mutex
	told []incident.Event
}

// chain returns the chain for d on a simulated host.
func (d *detection) chain(t *testing.T, nv *sim.Host) *chain {
	log := slog.New(slog.DiscardHandler)
	boot := fixture.Value(nv.Kernel().BootID())(t)
	c := &chain{start: time.Now(), table: nv.Table(log)}
	c.events = func(e collectors.Event) { c.monitor.Event(e) }
	c.options = Options{
		Samples: func() []collectors.Sample { return c.host.Samples() },
		Process: c.table.Recall,
		Stays:   func(uuid string) []collectors.Stay { return c.host.Stays(uuid) },
		Kernel:  nv.Follow, Record: c.record, Load: idle, Boot: boot, Node: "host", Log: log,
	}
	if d.Inject != "" {
		injections[d.Inject](c)
	}
	config := collectors.DefaultConfig()
	config.Enable, config.PerLink, config.XIDs = d.Enable, d.PerLink, incident.AlertableXIDs()
	c.host = collectors.NewHost(collectors.Options{NVML: nv, Kernel: nv.Kernel(), Config: config,
		Processes: c.table, Log: log,
		Events: func(e collectors.Event) { c.events(e) }})
	c.monitor = NewMonitor(c.options, Settings{})
	return c
}

// run runs d's host for a length of the bubble's time, and returns the chain's reports.
func (d *detection) run(t *testing.T, length time.Duration) []incident.Event {
	nv := fixture.Value(sim.New(d.Scenario, sim.Options{Seed: 1}))(t)
	c := d.chain(t, nv)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{c.table.Run, c.host.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	// The engine evaluates a second after the collectors read. At the same
	// instant it would see either this pass or the last one.
	time.Sleep(time.Second)
	running.Go(func() { _ = c.monitor.Run(ctx) })
	time.Sleep(length - time.Second)
	synctest.Wait()
	cancel()
	nv.Close()
	running.Wait()
	return c.told
}

func (c *chain) record(e incident.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, e)
}

// idle is the load of an agent in a process of its own. This process runs many, and their minutes take milliseconds.
func idle() map[string]float64 {
	return map[string]float64{"memory": .3, "processor": .1, "goroutines": .1}
}

// injections are changes that a simulated GPU does not support, by name. Each changes a chain before it begins.
var injections = map[string]func(c *chain){
	// A listener to the driver's events delays a reader for 5 min, which is not a call of the driver.
	"late": func(c *chain) {
		c.events = func(e collectors.Event) {
			if e.Type == "pstate" {
				time.Sleep(5 * time.Minute)
			}
			c.monitor.Event(e)
		}
	},
	// The enforcer has a window per second, and one in ten misses the guarantee.
	"qos": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.QoSWindows, at.Seconds(), "ml", "compute")
			put(workloads.QoSViolations, min(at, 10*time.Minute).Seconds()/10, "ml", "compute")
		})
	},
	// A tenant's work waits a fifth of the time for its work on another GPU.
	"convoy": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.QuotaConvoy, min(at, 10*time.Minute).Seconds()/5, "ml")
		})
	},
	// It waits for a fiftieth, like synchronised collectives.
	"short convoys": func(c *chain) {
		c.add(func(at time.Duration, put put) { put(workloads.QuotaConvoy, at.Seconds()/50, "ml") })
	},
	// Nobody knows how much memory is half of it.
	"unheld": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			if 0 < at && at < 10*time.Minute {
				put(workloads.QuotaBackend, 1, "ml", "memory", "none")
			}
			put(workloads.QuotaBackend, 1, "ml", "compute", "hook")
		})
	},
	// Each audit of the enforcer finds too much memory.
	"quota": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.QuotaViolations, math.Ceil(min(at, 10*time.Minute).Seconds()), "ml", unit, "memory")
		})
	},
	"unhooked":       shows(workloads.UnhookedProcesses, 0, 2, "ml", unit),
	"drift":          shows(workloads.QuotaChargeDrift, 0, .2, "ml"),
	"underreporting": shows(workloads.UnderreportingProcesses, 0, 1, "ml", unit),
	// The broker starves, or has ended. A link to the processor is down.
	"starved broker": shows(workloads.BrokerStarved, 0, 1),
	"no broker":      shows(workloads.BrokerUp, 1, 0),
	"c2c link down":  shows(links.C2CUp, 1, 0, "3"),
	// The ranks of a job wait for one. A neighbour makes its steps longer. It has a straggler.
	"hang":      shows(workloads.JobHang, math.NaN(), 40, "ml", unit, "3", "absent", "train.py:42 in step"),
	"slow":      shows(workloads.JobSlowdown, math.NaN(), .2, "ml", unit, "neighbour", "+0.1 s a step; waiting +0.1 s"),
	"straggler": shows(workloads.JobStraggler, math.NaN(), 0.1, "ml", unit, "3", "thermal"),
	// A workload was suspended a minute ago, and is to be resumed for five minutes from then on.
	"no room to resume": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			switch {
			case at > time.Minute && at < 6*time.Minute:
				put(workloads.SuspendedSeconds, (at - time.Minute).Seconds(), "ml", unit, "resuming")
			case at > 0 && at <= time.Minute:
				put(workloads.SuspendedSeconds, 7200, "ml", unit, "suspended")
			}
		})
	},
	// A workload waits for its turn on an overcommitted GPU, for two hours.
	"no turn": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.OvercommitWait, max(at.Seconds(), 0)*during(at, 2*time.Hour))
		})
	},
	"suspended": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.SuspendedSeconds, 7200+at.Seconds(), "ml", unit, "suspended")
		})
	},
	"broken": func(c *chain) {
		c.add(func(at time.Duration, put put) { put(workloads.SuspendBroken, collectors.Bool(at > 0)) })
	},
	"paused":                  func(c *chain) { c.escalation("pause", 0) },
	"suspended by escalation": func(c *chain) { c.escalation("suspend", 0) },
	"terminated":              func(c *chain) { c.escalation("terminate", 0) },
	"would terminate":         func(c *chain) { c.escalation("terminate", 1) },
	// A tenant's memory grows by 200 MiB per minute, with a cap of 10 GiB, for half an hour.
	"growing": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.QuotaMemoryLimit, 10<<30, "ml")
			put(workloads.QuotaMemoryUsed, 2<<30+min(at, 30*time.Minute).Minutes()*(200<<20), "ml")
		})
	},
	// A tenant has not yet claimed its guaranteed 20 GiB.
	"promised": func(c *chain) {
		c.add(func(_ time.Duration, put put) { put(workloads.QuotaMemoryGuarantee, 20<<30, "ml") })
	},
	// A tenant's share falls by a point per minute, although more is due to it.
	"starving": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.QuotaGuarantee, .5, "ml")
			put(workloads.QuotaTarget, .9, "ml", "10s")
			put(workloads.QuotaShare, .9-.01*at.Minutes()*during(at, 32*time.Minute), "ml", "10s")
		})
	},
	// A tenant's share falls as much, because it wants less.
	"wanting less": func(c *chain) {
		c.add(func(at time.Duration, put put) {
			put(workloads.QuotaGuarantee, .5, "ml")
			put(workloads.QuotaTarget, max(.1, .9-.01*at.Minutes()), "ml", "10s")
			put(workloads.QuotaShare, max(.1, .9-.01*at.Minutes()), "ml", "10s")
		})
	},
	// One of 18 links of GPU 2 runs at half its speed.
	"slow link": scales(10*time.Minute, 17.5/18, links.NVLinkSpeed),
	// GPU 2 does half of the others' work at the same clock.
	"half the work": scales(20*time.Minute, .5, activity.GPMActivity, device.Power),
	// It waits for its data for half of the time.
	"half as busy": scales(40*time.Minute, .5, activity.GPMActivity, device.Power, activity.Utilization),
	"stopped fan":  scales(10*time.Minute, 0, device.FanSpeed, device.FanRPM),
	"hot memory": func(c *chain) {
		c.alter("2", 20*time.Minute, func(_ time.Duration, s *collectors.Sample) {
			if s.Metric == device.Temperature && s.Labels[2] == "memory" {
				s.Value = 97
			}
		})
		c.add(func(_ time.Duration, put put) { put(device.TemperatureThreshold, 95, "memory_max") })
	},
	// GPU 2 is busy without a workload.
	"busy": func(c *chain) {
		c.alter("2", 20*time.Minute, func(_ time.Duration, s *collectors.Sample) {
			switch {
			case s.Metric == activity.Utilization && s.Labels[2] == "gpu":
				s.Value = 1
			case s.Metric == device.Clock && s.Labels[2] == "sm":
				s.Value = 1980e6
			}
		})
	},
	"low memory clock": func(c *chain) {
		c.alter("2", 10*time.Minute, func(_ time.Duration, s *collectors.Sample) {
			if s.Metric == device.Clock && s.Labels[2] == "memory" {
				s.Value = 1593e6
			}
		})
	},
	// The hardware slows GPU 2 down for 20 s of each 40.
	"slowdown": func(c *chain) {
		c.alter("2", 10*time.Minute, func(at time.Duration, s *collectors.Sample) {
			if s.Metric == device.ClockEventActive && s.Labels[2] == "hw_slowdown" {
				s.Value = collectors.Bool(at%(40*time.Second) < 20*time.Second)
			}
		})
	},
	// Heat makes the hardware slow it down for 2 s of each minute.
	"hot spells": func(c *chain) {
		c.alter("2", time.Hour, func(at time.Duration, s *collectors.Sample) {
			if s.Metric == device.ClockEventSeconds && s.Labels[2] == "hw_thermal" {
				s.Value += (at/time.Minute*2*time.Second + min(at%time.Minute, 2*time.Second)).Seconds()
			}
		})
	},
	"memory": func(c *chain) {
		c.options.Load = func() map[string]float64 {
			load := idle()
			if at := c.since(); at > 0 && at < 10*time.Minute {
				load["memory"] = 1.5
			}
			return load
		}
	},
	"overrun": func(c *chain) {
		c.options.Lost = func() map[string]float64 {
			return map[string]float64{
				"kernel_log": collectors.Bool(c.since() > 0)}
		}
	},
}

// injected is the time at which an injection begins to show.
const injected = time.Minute

func (c *chain) since() time.Duration { return time.Since(c.start) - injected }

// during is 1 for a length of time since the injection, and 0 before and after.
func during(at, length time.Duration) float64 { return collectors.Bool(at > 0 && at < length) }

// put adds a sample. The given labels follow gpu and uuid, if the metric has these.
type put func(m *collectors.Metric, v float64, labels ...string)

// add adds samples to the readings of each GPU, at a time since the injection; before the injection the time is 0.
func (c *chain) add(more func(at time.Duration, put put)) {
	read := c.options.Samples
	c.options.Samples = func() []collectors.Sample {
		all := slices.Clone(read())
		for _, s := range all {
			if s.Metric == collectors.Up {
				more(max(0, c.since()), func(m *collectors.Metric, v float64, labels ...string) {
					if slices.Contains(m.Labels, "gpu") {
						labels = append(s.Labels[:2:2], labels...)
					}
					all = append(all, collectors.Sample{Metric: m, Labels: labels, Value: v})
				})
			}
		}
		return all
	}
}

// alter changes a GPU's readings for a length of time since the injection.
func (c *chain) alter(gpu string, length time.Duration, change func(at time.Duration, s *collectors.Sample)) {
	read := c.options.Samples
	c.options.Samples = func() []collectors.Sample {
		all := slices.Clone(read())
		for i := range all {
			s := &all[i]
			if at := c.since(); at > 0 && at < length && len(s.Labels) > 1 && s.Metric.Labels[0] == "gpu" &&
				s.Labels[0] == gpu {
				change(at, s)
			}
		}
		return all
	}
}

// unit is the workload of injections.
const unit = "unit:train.service"

// shows adds a series to each GPU. Its value is another one for five minutes since the injection. Without a value it is
// absent.
func shows(m *collectors.Metric, usual, then float64, labels ...string) func(*chain) {
	return func(c *chain) {
		c.add(func(at time.Duration, put put) {
			v := usual
			if during(at, 5*time.Minute) == 1 {
				v = then
			}
			if !math.IsNaN(v) {
				put(m, v, labels...)
			}
		})
	}
}

// scales multiplies GPU 2's values of families for a length of time since the injection.
func scales(length time.Duration, by float64, families ...*collectors.Metric) func(*chain) {
	return func(c *chain) {
		c.alter("2", length, func(_ time.Duration, s *collectors.Sample) {
			if slices.Contains(families, s.Metric) {
				s.Value *= by
			}
		})
	}
}

// escalation puts a workload at a level for five minutes.
func (c *chain) escalation(level string, shadow float64) {
	c.add(func(at time.Duration, put put) {
		up := during(at, 5*time.Minute)
		put(workloads.QuotaLevel, 1-up, "ml", unit, "observe")
		put(workloads.QuotaLevel, up, "ml", unit, level)
		put(workloads.QuotaShadow, shadow, "ml", unit)
	})
}
