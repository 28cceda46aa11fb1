package health

import (
	"math"
	"strconv"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
)

// Habits are events of healthy hosts. testdata/world/styles.tsv has their number per week; 0 means permanently.
var habitsOf map[string]func(*site)

func init() { // they name each other
	habitsOf = map[string]func(*site){
		// Events of the agent.
		"upgrade": func(s *site) { // the broker's counters restart with the agent's
			s.starts, s.tenancies = append(s.starts, "upgrade"), nil
		},
		"tenants": func(s *site) { s.enforces, s.shadow = true, float64(s.r.IntN(2)) },
		"starve":  starve,
		"freeze": func(s *site) { // the host does not run the agent at all
			s.clock += s.some(10*time.Second, 50*time.Second)
			s.each(func(b *board) { s.silence("late", 1500*time.Millisecond, b) })
		},
		"jitter": func(s *site) { s.clock += s.some(time.Second, 4*time.Second) },
		"late":   func(s *site) { s.silence("late", s.some(3*time.Second, 8*time.Second), s.any()) },
		"lock":   lock,
		"family": func(s *site) { // a family that could not be read
			b := s.any()
			m := s.gauges[s.r.IntN(len(s.gauges))].metric
			b.missing[m] = true
			s.after(s.some(time.Second, 25*time.Second), func() { delete(b.missing, m) })
		},
		"reading":  misread,
		"profiler": profiler,

		// Events of the driver.
		"reload": func(s *site) { s.reload(false, s.some(8*time.Second, 50*time.Second)) },
		"drain":  func(s *site) { s.reload(true, s.some(20*time.Second, 10*time.Minute)) },
		"vfio":   vfio,
		"cut":    cut,

		// Events caused by operators.
		"reboot":          reboot,
		"ntp":             func(s *site) { s.shift += time.Duration(s.r.NormFloat64() * float64(10*time.Second)) },
		"prolog":          prolog,
		"lock_clocks":     lockClocks,
		"power_cap":       powerCap,
		"persistence_off": func(s *site) { s.each(func(b *board) { b.persistence = 0 }) },
		"mixed":           mixed,

		// Events of the hall.
		"warm": func(s *site) {
			by := 3 + 4*s.r.Float64()
			for range 10 { // air takes its time
				s.after(s.some(0, 30*time.Minute), func() { s.warm += by / 10 })
				s.after(s.some(2*time.Hour, 8*time.Hour), func() { s.warm -= by / 10 })
			}
		},
		"uneven": func(s *site) {
			s.each(func(b *board) {
				b.place = 13 * math.Abs(math.Sin(float64(len(b.gpu)*7)+b.number("tau_s")+b.draws*90))
			})
		},
		"brake": func(s *site) { // the rack's supplies switch over
			took := 0.02 + 0.8*s.r.Float64()
			s.each(func(b *board) { b.v.brakeFor += took })
		},

		// Events of parts that correct their errors.
		"ecc": func(s *site) {
			b := s.any()
			n := 1 + 5*s.r.ExpFloat64()
			b.v.corrected += math.Floor(n)
			b.v.aggregate += math.Floor(n)
		},
		"crc": func(s *site) {
			b := s.any()
			b.v.crc[b.line()] += math.Floor(1 + 6*s.r.ExpFloat64())
		},
		"replays": func(s *site) { s.any().v.replays += math.Floor(1 + 4*s.r.ExpFloat64()) },
		"aer": func(s *site) {
			b := s.any()
			b.v.aer++
			b.v.correctable++
			s.log("aer", b)
		},
		"ibflap": func(s *site) {
			if len(s.ports) > 0 {
				p := &s.ports[s.r.IntN(len(s.ports))]
				p.up, p.downed = 0, p.downed+1
				s.attend(20 * time.Second)
				s.after(s.some(2*time.Second, 12*time.Second), func() { p.up = 1 })
			}
		},

		// Lines of the kernel.
		"nfs": func(s *site) { // a file server does not answer for some minutes
			s.log("nfs server", nil)
			for range 1 + s.r.IntN(8) {
				comm := []string{"python3", "kworker/u257:3", "bash", "rsync", "tar"}[s.r.IntN(5)]
				s.after(s.some(2*time.Minute, 5*time.Minute), func() {
					s.pid++
					s.log("nfs", nil, "{comm}", comm, "{pid}", strconv.Itoa(s.pid))
				})
			}
			s.after(s.some(5*time.Minute, 9*time.Minute), func() { s.log("nfs server ok", nil) })
		},
		"cmci": func(s *site) {
			s.log([]string{"cmci", "cmci ghes"}[s.r.IntN(2)], nil)
		},
		"memcg": func(s *site) { s.pid++; s.log("memcg", nil, "{comm}", "python3", "{pid}", strconv.Itoa(s.pid)) },
		"oom":   func(s *site) { s.pid++; s.log("oom", nil, "{pid}", strconv.Itoa(s.pid)) },
		"usb":   func(s *site) { s.log("usb", nil) },

		// The kernel keeps files in the memory of a coherent board.
		"pagecache": func(s *site) {
			s.often(2000, func(s *site) {
				b := s.any()
				most := 0.5 * b.number("memory")
				b.cache = math.Round(min(most, max(0, b.cache+most*(0.06*s.r.ExpFloat64()-0.04))))
			})
		},
	}
}

func (s *site) each(do func(*board)) {
	for _, b := range s.boards {
		do(b)
	}
}

// starve takes the processors from the agent for a while: its passes are rare, and its readers are behind.
func starve(s *site) {
	d := s.some(10*time.Second, 50*time.Second)
	s.starved = s.clock + d
	s.each(func(b *board) {
		why := "late"
		if s.chance(8) { // it was in a call when it lost its processor
			why = "nvmlDeviceGetUtilizationRates"
		}
		s.silence(why, d+s.some(0, 2*time.Second), b)
	})
	s.after(d, func() { s.attend(10 * time.Second) })
}

// lock has another tool hold the driver's lock, on one board or on all.
func lock(s *site) {
	d := s.some(10*time.Second, 50*time.Second)
	boards := s.boards
	if s.chance(40) {
		boards = []*board{s.any()}
	}
	s.attend(d + 10*time.Second)
	for _, b := range boards {
		s.silence("nvmlDeviceGetTotalEnergyConsumption", d, b)
	}
	s.blocks = 1
	s.after(d, func() { s.blocks = 0 })
}

// silence makes a board unreadable for a while.
func (s *site) silence(why string, d time.Duration, b *board) {
	s.attend(d)
	b.silent = why
	s.after(d, func() { b.silent = "" })
}

// misread makes one reading wrong, once.
func misread(s *site) {
	b := s.any()
	m := []*collectors.Metric{device.Temperature, device.Power, activity.Utilization, device.Clock,
		device.TemperatureMargin, device.MemoryBytes}[s.r.IntN(6)]
	by := []float64{0, 0.3, 3, 1.4}[s.r.IntN(4)]
	x := &breakage{board: b, metric: m, change: func(v, _ float64) float64 { return v * by }, from: s.clock,
		until: s.clock + step - 1}
	s.broken = append(s.broken, x)
}

// profiler takes the counters of the pipes away for a while.
func profiler(s *site) {
	s.profiled = true
	s.after(s.some(5*time.Minute, 4*time.Hour), func() { s.profiled = false })
}

// reload removes the driver, with or without notice to the agent. With notice,
// work has ended before, as it must before the module is unloaded.
func (s *site) reload(drained bool, away time.Duration) {
	if !s.driver {
		return
	}
	s.driver, s.drained = false, drained
	s.attend(10 * time.Second)
	s.log("reload", nil)
	s.after(away, func() {
		s.driver, s.drained = true, false
		s.generation++
		s.attend(2 * time.Minute)
		settings := map[*board][3]float64{}
		s.each(func(b *board) {
			settings[b] = [3]float64{b.limit, b.locked, b.persistence}
			b.reset(s)
			b.opened()
			b.persistence = 0
		})
		s.after(s.some(5*time.Second, 90*time.Second), func() { // units of the host set it up
			s.each(func(b *board) { b.persistence = settings[b][2] })
		})
		if s.chance(60) { // nobody restores an admin's manual setting
			s.after(s.some(5*time.Second, 5*time.Minute), func() {
				s.each(func(b *board) { b.limit, b.locked = settings[b][0], settings[b][1] })
			})
		}
	})
}

// reboot restarts the host.
func reboot(s *site) {
	for _, l := range s.slots {
		l.stop(s)
	}
	s.clock += s.some(2*time.Minute, 6*time.Minute)
	s.boot, s.sequence, s.generation, s.booted = s.boot+1, 0, 1, s.clock-s.some(20*time.Second, time.Minute)
	s.starts, s.tenancies = append(s.starts, "reboot"), nil
	s.driver, s.drained = true, false
	s.attend(2 * time.Minute)
	s.each(func(b *board) {
		b.silent, b.away, b.cache = "", "", 0
		b.reset(s)
		b.opened()
		b.v.aer = 0
	})
	for i := range s.ports { // they get their carriers one by one
		s.ports[i] = port{}
		s.after(s.some(time.Second, 2*time.Minute), func() { s.ports[i].up = 1 })
	}
}

// vfio hands boards without work to a virtual machine, and takes them back
// hours later. The driver releases an unused board.
func vfio(s *site) {
	n := 1 + s.r.IntN(4)
	drained := s.chance(50)
	given := s.boards[len(s.boards)-n:]
	hand := func(to string) {
		for _, b := range given {
			if (b.away == "") == (to == "") {
				continue
			}
			b.away = to
			if to == "" {
				b.reset(s)
				b.opened()
			} else {
				s.log("vfio", b)
			}
		}
	}
	hours := s.some(time.Hour, 12*time.Hour)
	for _, move := range []struct {
		after time.Duration
		to    string
	}{{0, "vfio-pci"}, {hours, ""}} {
		s.after(move.after, func() {
			s.attend(time.Minute)
			if !drained {
				hand(move.to)
				return
			}
			s.driver, s.drained = false, true
			s.after(s.some(5*time.Second, 40*time.Second), func() {
				hand(move.to)
				s.driver, s.drained = true, false
				s.generation++
				s.each((*board).opened)
			})
		})
	}
}

// cut lets the scheduler make a board whole, or divide it; its work ends first.
func cut(s *site) {
	b := s.any()
	if b.mig == 0 && s.chance(50) {
		return
	}
	for _, l := range s.slots {
		if l.boards[0] == b {
			l.stop(s)
			l.next = s.clock + s.some(time.Minute, 20*time.Minute)
		}
	}
	s.attend(30 * time.Second)
	s.after(20*time.Second, func() {
		b.mig = 1 - b.mig
		b.reset(s)
		b.trained = 0
	})
	if b.mig == 1 { // briefly, if work is waiting for parts
		s.after(s.some(10*time.Minute, time.Hour), func() { b.mig = 1 })
	}
}

// prolog changes a board's settings for a job, and the epilog restores them.
func prolog(s *site) {
	b := s.any()
	what := s.r.IntN(3)
	switch what {
	case 0:
		b.compute = 3
	case 1:
		b.limit = math.Round(b.number("w_limit") * (0.6 + 0.3*s.r.Float64()))
	default:
		b.locked = math.Round(b.number("mhz_max")*(0.4+0.4*s.r.Float64())/15) * 15
	}
	s.after(s.some(2*time.Minute, 2*time.Hour), func() {
		switch what {
		case 0:
			b.compute = 0
		case 1:
			b.limit = b.number("w_limit")
		default:
			b.locked = 0
		}
	})
}

// lockClocks is an administrator who saves power, or wants reproducible times.
func lockClocks(s *site) {
	mhz := math.Round(s.boards[0].number("mhz_max")*(0.25+0.6*s.r.Float64())/15) * 15
	if s.chance(30) {
		mhz = 0
	}
	if s.chance(30) {
		s.any().locked = mhz
		return
	}
	s.each(func(b *board) { b.locked = mhz })
}

// powerCap lowers or restores the power limit, for one board after the other or for all.
func powerCap(s *site) {
	watts := math.Round(s.boards[0].number("w_limit") * (0.5 + 0.5*s.r.Float64()))
	if s.chance(30) {
		watts = s.boards[0].number("w_limit")
	}
	if s.chance(25) {
		s.any().limit = watts
		return
	}
	s.each(func(b *board) {
		s.after(s.some(0, time.Minute), func() { b.limit = watts })
	})
}

// mixed gives some of the boards other firmware, as repairs do.
func mixed(s *site) {
	for i, b := range s.boards {
		if i%3 == 1 {
			b.vbios = b.vbios[:len(b.vbios)-2] + "1A"
		}
	}
}
