package health

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors/host"
)

// A slot is a place for work: some boards, or a part of one.
type slot struct {
	kind   worldRow // of testdata/world/kinds.tsv
	boards []*board
	part   float64
	gi     string // MIG instance
	task   *task
	next   time.Duration // when the next task begins
	spree  int           // remaining tasks that fail as the last one did
	team   string        // its tenant
}

// A task is a user's job, container or session.
type task struct {
	comm, workload string
	pid            int
	began, ends    time.Duration
	end            string // its kind of end: done, killed or crashed
	program        program
	bias           []float64 // by board
	held, use      []float64
	conduct
}

// A program returns its need of each board at an age, and the part of the memory that it holds.
type program func(age, dt time.Duration) (need, float64)

// employ gives the boards their slots: "dense:8" is a slot on eight boards,
// "8xqueue:1" are eight slots on one board each.
func (s *site) employ(work string) {
	at := 0.0
	for word := range strings.FieldsSeq(work) {
		count, rest, many := strings.Cut(word, "x")
		n, err := strconv.Atoi(count)
		if !many || err != nil {
			n, rest = 1, word
		}
		kind, size, _ := strings.Cut(rest, ":")
		boards, err := strconv.ParseFloat(size, 64)
		if err != nil {
			panic("health: styles.tsv: " + word)
		}
		for range n {
			first := int(math.Ceil(at-1e-9)) % len(s.boards)
			if boards < 1 {
				first = int(at) % len(s.boards)
			}
			l := &slot{kind: worldRowOf("kinds", "kind", kind), team: fmt.Sprint("team-", len(s.slots)%5), part: min(1, boards), next: s.clock +
				s.some(0, 20*time.Minute)}
			l.boards = s.boards[first:min(first+int(max(1, boards)), len(s.boards))]
			if boards < 1 {
				l.gi = fmt.Sprint(1 + int(math.Round(math.Mod(at, 1)/boards)))
				l.boards[0].mig = 1
			}
			at += boards
			s.slots = append(s.slots, l)
		}
	}
	load := map[*board]int{} // the slots of a board share its memory
	for _, l := range s.slots {
		for _, b := range l.boards {
			load[b]++
		}
	}
	for _, l := range s.slots {
		if l.gi == "" {
			l.part = 1 / float64(load[l.boards[0]])
		}
	}
}

// work advances the slot's task.
func (l *slot) work(s *site, dt time.Duration) {
	switch t := l.task; {
	case !s.driver || l.boards[0].away != "":
		l.stop(s)
		return
	case t == nil && s.clock >= l.next:
		l.start(s)
	case t != nil && s.clock >= t.ends:
		l.finish(s)
	}
	t := l.task
	if t == nil {
		return
	}
	wants, memory := t.program(s.clock-t.began, dt)
	for i, b := range l.boards {
		part := l.part
		if l.gi == "" {
			part = 1 // the tasks of a board take turns; add is bounded
		}
		mine := wants
		mine.heat *= t.bias[i]
		b.want.add(mine, part)
		t.held[i] = math.Round(memory*l.part*(b.number("memory")-b.number("reserved"))/(2<<20)) * (2 << 20)
		t.use[i] = math.Round(100*clamp(mine.busy*part)) / 100
		b.held += t.held[i]
		b.residents++
	}
}

// start begins a task of the slot's kind.
func (l *slot) start(s *site) {
	s.jobs++
	s.pid += 1 + s.r.IntN(90)
	k := l.kind
	t := &task{comm: k["comm"], pid: s.pid, began: s.clock, end: "done"}
	length := time.Duration(k.number("hours") * math.Exp(0.7*s.r.NormFloat64()) * float64(time.Hour))
	switch roll := s.r.Float64(); {
	case l.spree > 0:
		l.spree--
		t.end, length = "crashed", s.some(15*time.Second, 3*time.Minute)
	case roll < k.number("crash"):
		t.end, length = "crashed", time.Duration(s.r.Float64()*float64(length))
		if k["by"] == "slurm" && s.chance(15) { // an array of jobs with the same mistake
			l.spree = 2 + s.r.IntN(15)
		}
	case roll < k.number("crash")+k.number("kill"):
		t.end, length = "killed", time.Duration(s.r.Float64()*float64(length))
	}
	t.ends = s.clock + max(length, 5*time.Second)
	who := host.Process{PID: t.pid, Start: uint64(t.pid), Comm: t.comm, UID: 1000, Workload: &host.Workload{}}
	switch k["by"] {
	case "slurm":
		t.workload, who.UID = fmt.Sprintf("slurm:%d.0", 40000+s.jobs), 1000+s.r.IntN(30)
	case "pod":
		t.workload, who.Workload.Namespace = fmt.Sprintf("pod:serving/%s-%d", k["kind"], s.jobs), "serving"
	default:
		who.UID = 1000 + s.r.IntN(12)
		t.workload = fmt.Sprintf("user:%d", who.UID)
	}
	who.Workload.Key = t.workload
	n := len(l.boards)
	t.bias, t.held, t.use = make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range t.bias {
		t.bias[i] = 1
		if n > 1 { // ranks wait for each other
			t.bias[i] = 1 - 0.006*s.r.Float64()
		}
	}
	name := k["program"]
	if name == "any" {
		name = []string{"dense", "loader", "small", "hpc", "grow", "hog"}[s.r.IntN(6)]
	}
	t.program = programs[name](s)
	s.people[t.pid] = &person{Process: who, boards: l.boards}
	l.task = t
}

// finish ends the task, with the driver's report if its kind of end has one.
func (l *slot) finish(s *site) {
	t := l.task
	l.stop(s)
	switch t.end {
	case "crashed":
		code := []int{31, 31, 13, 43}[s.r.IntN(4)]
		at := l.boards[s.r.IntN(len(l.boards))]
		s.attend(10 * time.Second)
		s.xid(code, at, t.pid, t.comm)
		for _, b := range l.boards { // the other ranks are ended
			if b != at && s.chance(60) {
				s.xid(45, b, t.pid, t.comm)
			}
		}
	case "killed":
		if s.chance(50) {
			for _, b := range l.boards {
				s.xid(45, b, t.pid, t.comm)
			}
		}
	}
}

// stop ends the task at once.
func (l *slot) stop(s *site) {
	if t := l.task; t != nil {
		l.task = nil
		pid := t.pid
		s.people[pid].until = s.now()
		s.after(2*time.Minute, func() { delete(s.people, pid) })
	}
	gap := time.Duration(l.kind.number("gap_min") * s.r.ExpFloat64() * float64(time.Minute))
	if l.spree > 0 {
		gap = s.some(5*time.Second, time.Minute)
	}
	l.next = s.clock + gap
}

// A phase is a period with another activity of a program.
type phase struct {
	until time.Duration
	need
}

// programs create programs, by name. Each has a mood of its own.
var programs = map[string]func(s *site) program{
	"dense": func(s *site) program {
		return trains(s, need{busy: 1, heat: 0.8 + 0.2*s.r.Float64(), sm: 0.92, tensor: 0.55, dram: 0.3, nvlink: 6e10,
			rx: 2e8}, time.Minute)
	},
	"fsdp": func(s *site) program {
		return trains(s, need{busy: 0.99, heat: 0.55 + 0.35*s.r.Float64(), sm: 0.8, tensor: 0.4, dram: 0.35,
			nvlink: 2e11, rx: 4e8}, time.Minute)
	},
	"commbound": func(s *site) program { // kernels that wait for other hosts
		return trains(s, need{busy: 1, heat: 0.06 + 0.25*s.r.Float64(), sm: 0.2, tensor: 0.08, dram: 0.08,
			nvlink: 2.5e11, rx: 2e10, tx: 2e10}, time.Minute)
	},
	"stalls": func(s *site) program {
		return trains(s, need{busy: 1, heat: 0.75, sm: 0.85, tensor: 0.45, dram: 0.3, nvlink: 6e10}, 12*time.Minute)
	},
	"small": func(s *site) program { // many small kernels, one after the other
		wants := need{busy: min(1, 0.92+0.15*s.r.Float64()), heat: 0.02 + 0.1*s.r.Float64(), sm: 0.15, dram: 0.05, rx: 1e7}
		memory := 0.03 + 0.2*s.r.Float64()
		return func(_, _ time.Duration) (need, float64) { return wants, memory }
	},
	"hog": func(s *site) program { // a framework that takes all memory at its start
		wants := need{busy: 0.3 + 0.6*s.r.Float64(), heat: 0.4 * s.r.Float64(), sm: 0.3, dram: 0.2}
		memory := []float64{0.75, 0.9, 0.95, 0.985}[s.r.IntN(4)]
		return func(_, _ time.Duration) (need, float64) { return wants, memory }
	},
	"hpc":      hpc,
	"loader":   loader,
	"serve":    serves,
	"kv":       fills,
	"burst":    bursts,
	"notebook": types,
	"grow":     grows,
	"mps": func(s *site) program {
		memory := 0.3 + 0.4*s.r.Float64()
		return func(_, _ time.Duration) (need, float64) {
			return need{busy: 0.7 + 0.3*s.r.Float64(), heat: 0.35 + 0.1*s.r.Float64(), sm: 0.6, dram: 0.3}, memory
		}
	},
}

// trains is the training of a model. It stops for its checkpoints for up to
// stall, either idle or with the collective's kernels spinning.
func trains(s *site, at need, stall time.Duration) program {
	memory, loading := 0.45+0.4*s.r.Float64(), s.some(10*time.Second, 12*time.Minute)
	every, spins := s.some(8*time.Minute, time.Hour), s.chance(60)
	spin := need{busy: 1, heat: 0.02 + 0.08*s.r.Float64(), sm: 0.08}
	var now phase
	saved, warm := loading, s.some(0, 4*time.Minute)
	return func(age, _ time.Duration) (need, float64) {
		switch {
		case age < loading:
			return need{busy: 0.01, heat: 0.01, rx: 2e9}, 0.02 + memory*0.9*age.Seconds()/loading.Seconds()
		case age < loading+warm: // ranks wait for the last one
			return spin, memory
		case age < now.until:
			return now.need, memory
		case age-saved > every:
			saved = age
			now = phase{age + s.some(10*time.Second, stall), need{tx: 4e9}}
			if spins {
				now.need = spin
			}
		case s.chance(0.05):
			// evaluates
			now = phase{age + s.some(time.Minute, 8*time.Minute), need{busy: 0.85, heat: 0.5 * at.heat, sm: 0.5,
				tensor: 0.2, dram: 0.3}}
		case s.chance(0.5): // the allocator fragments its memory
			memory += 0.02 * (0.96 - memory)
		case s.chance(2): // a straggler elsewhere
			return spin, memory
		}
		return at, memory
	}
}

// hpc is a simulation with FP64, phases of some minutes, and file access in between.
func hpc(s *site) program {
	period, memory, heat := s.some(2*time.Minute, 25*time.Minute), 0.1+0.5*s.r.Float64(), 0.3+0.4*s.r.Float64()
	return func(age, _ time.Duration) (need, float64) {
		if age%period < period/8 {
			return need{tx: 1e9}, memory
		}
		return need{busy: 0.99, heat: heat, sm: 0.8, dram: 0.6}, memory
	}
}

// loader waits for data: it is busy and idle in turns of seconds, and each epoch keeps more of its data on the GPU.
func loader(s *site) program {
	period, duty := s.some(4*time.Second, 90*time.Second), 0.2+0.6*s.r.Float64()
	memory, epoch, heat := 0.2+0.3*s.r.Float64(), s.some(10*time.Minute, time.Hour), 0.4+0.5*s.r.Float64()
	epochs := 0
	return func(age, _ time.Duration) (need, float64) {
		if n := int(age / epoch); n > epochs {
			epochs = n
			memory += 0.04 * s.r.Float64() * (0.9 - memory)
		}
		if float64(age%period) > duty*float64(period) {
			return need{rx: 3e8}, memory
		}
		return need{busy: 0.8 + 0.2*s.r.Float64(), heat: heat, sm: 0.7, tensor: 0.3, dram: 0.4, rx: 1e9}, memory
	}
}

// demand returns the load of a public service: little at night.
func (s *site) demand() float64 { return 0.5 - 0.4*math.Cos(2*math.Pi*(s.hour()-3)/24) }

// serves is inference with memory that is taken at the start.
func serves(s *site) program {
	memory, loading, heat := 0.86+0.1*s.r.Float64(), s.some(time.Minute, 10*time.Minute), 0.3+0.3*s.r.Float64()
	return func(age, _ time.Duration) (need, float64) {
		if age < loading {
			return need{busy: 0.02, heat: 0.02, rx: 2e9}, memory * age.Seconds() / loading.Seconds()
		}
		rate := clamp(s.demand() * (1 + 0.25*s.r.NormFloat64()))
		return need{busy: min(1, 1.4*rate), heat: heat * rate, sm: 0.7 * rate, tensor: 0.25 * rate, dram: 0.6 * rate,
			nvlink: 2e10 * rate, rx: 4e7 * rate}, memory
	}
}

// fills is inference whose cache grows with its conversations until it is full.
func fills(s *site) program {
	weights, full := 0.3+0.3*s.r.Float64(), 0.88+0.09*s.r.Float64()
	hours := 0.5 + 9*s.r.Float64()
	memory := weights
	serve := serves(s)
	return func(age, dt time.Duration) (need, float64) {
		wants, _ := serve(age, dt)
		memory = min(full, memory+(full-weights)*dt.Hours()/hours*2*s.demand())
		if s.chance(0.02) { // conversations end
			memory -= 0.5 * s.r.Float64() * (memory - weights)
		}
		return wants, memory
	}
}

// bursts is inference that mostly waits.
func bursts(s *site) program {
	memory, heat := 0.2+0.5*s.r.Float64(), 0.3+0.6*s.r.Float64()
	var now phase
	return func(age, _ time.Duration) (need, float64) {
		switch {
		case age < now.until:
			return now.need, memory
		case s.r.Float64() < 0.12*s.demand():
			now = phase{age + s.some(2*time.Second, 4*time.Minute), need{busy: 0.4 + 0.6*s.r.Float64(), heat: heat,
				sm: 0.6, tensor: 0.3, dram: 0.4, rx: 2e8}}
		}
		return need{}, memory
	}
}

// types is a person at a notebook.
func types(s *site) program {
	memory := 0.03 + 0.1*s.r.Float64()
	var now phase
	return func(age, _ time.Duration) (need, float64) {
		switch {
		case age < now.until:
			return now.need, memory
		case s.r.Float64() < 0.05*s.demand():
			now = phase{age + s.some(5*time.Second, 15*time.Minute), need{busy: 0.1 + 0.9*s.r.Float64(),
				heat: 0.8 * s.r.Float64(), sm: 0.4, tensor: 0.1, dram: 0.3}}
			memory = min(0.97, memory+0.12*s.r.Float64())
		case s.chance(0.1): // the notebook's kernel is restarted
			memory = 0.03
		}
		return need{}, memory
	}
}

// grows is data that is kept on the GPU, such as indexes, buffers and frames. It grows to its intended size.
func grows(s *site) program {
	memory, most, hours := 0.05+0.3*s.r.Float64(), 0.7+0.27*s.r.Float64(), 1+9*s.r.Float64()
	first, steps, heat := memory, s.chance(50), 0.1+0.5*s.r.Float64()
	return func(age, _ time.Duration) (need, float64) {
		part := min(1, age.Hours()/hours)
		if steps {
			part = math.Floor(part*12) / 12
		}
		memory = first + (most-first)*part
		return need{busy: 0.3 + 0.6*s.r.Float64(), heat: heat, sm: 0.4, dram: 0.5, rx: 5e8}, memory
	}
}
