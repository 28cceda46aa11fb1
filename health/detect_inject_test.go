package health

import (
	"math"
	"slices"
	"time"

	"gpusteward/collectors"
)

// injections are what no simulated GPU can do, by name: each changes a chain
// before it begins.
var injections = map[string]func(c *chain){
	// Whoever listens to the driver's events holds a reader up, for 5 min:
	// that is no call of the driver.
	"late": func(c *chain) {
		c.events = func(e collectors.Event) {
			if e.Type == "pstate" {
				time.Sleep(5 * time.Minute)
			}
			c.monitor.Event(e)
		}
	},
	// The enforcer has a window a second, and one in ten misses the guarantee.
	"qos": func(c *chain) {
		c.add(func(at time.Duration, put func(m *collectors.Metric, v float64, labels ...string)) {
			put(collectors.QoSWindows, at.Seconds(), "share")
			put(collectors.QoSViolations, min(at, 10*time.Minute).Seconds()/10, "share")
		})
	},
	// The enforcer warns each half a minute.
	"quota": func(c *chain) {
		c.add(func(at time.Duration, put func(m *collectors.Metric, v float64, labels ...string)) {
			put(collectors.QuotaViolations, math.Ceil(min(at, 10*time.Minute).Seconds()/30), "warn")
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
		c.options.Lost = func() map[string]float64 { return map[string]float64{"kernel_log": collectors.Bool(c.since() > 0)} }
	},
}

// injected is when an injection begins to show.
const injected = time.Minute

func (c *chain) since() time.Duration { return time.Since(c.start) - injected }

// add adds samples of a workload to what is read, as of a time since the
// injection; before it they are 0.
func (c *chain) add(more func(at time.Duration, put func(m *collectors.Metric, v float64, labels ...string))) {
	read := c.options.Samples
	c.options.Samples = func() []collectors.Sample {
		all := slices.Clone(read())
		for _, s := range all {
			if s.Metric == collectors.Up {
				more(max(0, c.since()), func(m *collectors.Metric, v float64, labels ...string) {
					all = append(all, collectors.Sample{Metric: m, Labels: append([]string{s.Labels[0], s.Labels[1], "unit:train.service"}, labels...), Value: v})
				})
			}
		}
		return all
	}
}
