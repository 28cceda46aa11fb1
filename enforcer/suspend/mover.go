package suspend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/internal/span"
)

// Bounds of a move.
const (
	lockWithin  = 5 * time.Second  // until the work that a process has submitted must have ended
	callWithin  = 15 * time.Second // for a call that copies nothing
	slowestCopy = 256 << 20        // bytes a second that a copy is granted at least
	spare       = 256 << 20        // bytes that are free on a GPU beyond what is restored there
	lastCall    = time.Second / 4  // for a call that is under way when Life ends
)

// A Mover moves the memory of processes by calls of the driver, for which it waits. It owns
// nothing, so any goroutine may use it, and calls the functions. Set Call, Free, Alive and Room;
// the rest may be zero.
type Mover struct {
	Call Call
	Free func(uuid string) (bytes uint64, known bool) // memory that is free on a GPU
	// Settle is how long a resumption waits for a driver that does not tell its free memory,
	// as when the agent has just started.
	Settle time.Duration
	Size   func(uuid string) (bytes uint64, known bool) // memory of a GPU that programs can have; nil: unknown
	Room   func(bytes, others map[int]uint64) error     // by PID; see Host
	Alive  func(action.Target) bool                     // whether that process still exists
	Life   context.Context                              // when it ends, no more calls are made; nil: never
	Guard  *Guards                                      // of the suspended processes; nil: they are not guarded
	Spans  *span.Recorder                               // nil: there are none
}

// guard guards processes, from before their state is taken until they have that back. Where this
// cannot be, they are not guarded.
func (m *Mover) guard(all []Process) *sync.WaitGroup {
	var guarded sync.WaitGroup
	for _, p := range all {
		if m.Guard != nil && m.Alive(p.Target) {
			guarded.Go(func() { _ = m.Guard.Take(p.PID) }) // Guards says whether it succeeded
		}
	}
	return &guarded
}

// lives reports whether one of the processes has not ended.
func (m *Mover) lives(all []Process) bool {
	return slices.ContainsFunc(all, func(p Process) bool { return m.Alive(p.Target) })
}

// room returns a Refusal unless the host has room for new processes of a record, beside
// others that are on the way there, and its GPUs could have them all back.
func (m *Mover) room(r Record, fresh []Process, others map[int]uint64) error {
	for uuid, bytes := range r.Bytes() {
		if m.Size == nil {
			break
		}
		if size, known := m.Size(uuid); known && bytes+spare > size {
			return refuse(GPUMemory, "%s could not give %d MiB back: it has %d MiB, and %d MiB stay free", uuid, bytes>>20,
				size>>20, spare>>20)
		}
	}
	fresh = slices.DeleteFunc(slices.Clone(fresh), func(p Process) bool { return !m.Alive(p.Target) })
	return m.Room(byPID(fresh), others)
}

// byPID returns the GPU memory of processes.
func byPID(all []Process) map[int]uint64 {
	bytes := map[int]uint64{}
	for _, p := range all {
		bytes[p.PID] += p.bytes()
	}
	return bytes
}

func (p Process) bytes() (sum uint64) {
	for _, n := range p.Memory {
		sum += n
	}
	return sum
}

// call makes one call with its deadline, as a part of a span.
func (m *Mover) call(of span.Parent, op Op, p Process) (state State, err error) {
	a := m.Spans.Begin("driver."+string(op), of)
	defer func() { a.End(failure(err), "pid", p.PID, "bytes", p.bytes()) }()
	if !m.Alive(p.Target) {
		return Unknown, refuse(NotCUDA, "%s of %d: the process has ended", op, p.PID)
	}
	within := callWithin
	if op == Checkpoint || op == Restore {
		within += time.Duration(float64(p.bytes()) / slowestCopy * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if m.Life != nil {
		if m.Life.Err() != nil {
			return Unknown, refuse(NoAnswer, "%s of %d: the enforcer ends", op, p.PID)
		}
		defer context.AfterFunc(m.Life, func() { time.AfterFunc(lastCall, cancel) })()
	}
	return m.Call(ctx, op, p.PID)
}

// failure is the reason of an error; empty for nil.
func failure(err error) string {
	if err == nil {
		return ""
	}
	return string(ReasonOf(err))
}

// suspend suspends all processes: no process is checkpointed before all are
// locked, since those that are not yet may wait for the others. It undoes
// nothing. A process that the driver broke is lost. Of several, some may end
// meanwhile. What is locked or checkpointed already is this suspender's, unless it
// is new.
func (m *Mover) suspend(of span.Parent, all []Process) (lost []int, err error) {
	needs := map[Op][]Process{}
	for _, p := range all {
		switch state, err := m.call(of, Ask, p); {
		case ReasonOf(err) == NotCUDA && !m.Alive(p.Target):
		case err != nil:
			return nil, &untouched{err}
		case state == Running:
			needs[Lock], needs[Checkpoint] = append(needs[Lock], p), append(needs[Checkpoint], p)
		case !p.New && state == Locked:
			needs[Checkpoint] = append(needs[Checkpoint], p)
		case p.New || state != Checkpointed:
			return nil, &untouched{refuse(WrongState, "the driver says that %d is %s", p.PID, state)}
		}
	}
	for _, op := range []Op{Lock, Checkpoint} {
		if op == Checkpoint {
			m.guard(needs[op]).Wait()
		}
		for _, p := range needs[op] {
			switch state, err := m.call(of, op, p); {
			case ReasonOf(err) == NotCUDA && !m.Alive(p.Target):
			case err != nil && state == Broken:
				return []int{p.PID}, err
			case err != nil:
				return nil, err
			}
		}
	}
	if !m.lives(all) {
		return nil, refuse(NotCUDA, "its processes ended")
	}
	return nil, nil
}

// giveBack lets all processes run again, whatever was done of their suspension
// or resumption: no process goes on before all have their memory. If one of them
// cannot have it, none keeps it. A process that the driver broke is lost, and
// so is one that ended. Others take memory at the same time, in bytes by UUID.
func (m *Mover) giveBack(of span.Parent, all []Process, others map[string]uint64) (lost []int, err error) {
	var locked, away []Process
	for _, p := range all {
		switch state, err := m.call(of, Ask, p); {
		case err != nil && !m.Alive(p.Target):
		case err != nil:
			return lost, err
		case state == Broken:
			lost = append(lost, p.PID)
		case state == Locked:
			locked = append(locked, p)
		case state == Checkpointed:
			away = append(away, p)
		}
	}
	if err := m.fits(away, others); err != nil {
		return lost, &untouched{err}
	}
	for _, p := range away {
		switch state, err := m.call(of, Restore, p); {
		case err != nil && !m.Alive(p.Target):
		case err != nil && state == Broken:
			lost = append(lost, p.PID)
		case err != nil:
			return lost, errors.Join(err, m.takeAgain(of, locked))
		default:
			locked = append(locked, p)
		}
	}
	for _, p := range locked {
		if _, e := m.call(of, Unlock, p); e != nil && m.Alive(p.Target) {
			err = errors.Join(err, e)
		} else {
			m.Guard.Give(p.PID)
		}
	}
	return lost, err
}

// fits returns a Refusal unless the GPUs have room for processes, beside others in bytes
// by UUID. The driver is not asked to try: drivers of the 580 series break a process for
// whose memory there is no room.
func (m *Mover) fits(all []Process, others map[string]uint64) error {
	for uuid, bytes := range (Record{Processes: all}).Bytes() {
		free, known := m.Free(uuid)
		lives := func() bool { return m.Life == nil || m.Life.Err() == nil }
		for began := time.Now(); !known && time.Since(began) < m.Settle && lives(); free, known = m.Free(uuid) {
			time.Sleep(m.Settle / 50)
		}
		switch {
		case !known:
			return refuse(GPUMemory, "it is unknown whether %s has room: the driver does not tell its free memory", uuid)
		case free < bytes+others[uuid]+spare:
			return refuse(GPUMemory, "%s has no room for %d MiB: %d MiB are free, and %d MiB are kept for others", uuid, bytes>>20,
				free>>20, (others[uuid]+spare)>>20)
		}
	}
	return nil
}

// takeAgain checkpoints processes again whose workload could not be restored.
func (m *Mover) takeAgain(of span.Parent, locked []Process) (err error) {
	for _, p := range locked {
		if _, e := m.call(of, Checkpoint, p); e != nil && m.Alive(p.Target) {
			err = errors.Join(err, fmt.Errorf("and %d keeps its memory: %w", p.PID, e))
		}
	}
	return err
}

// An untouched is an error before anything was done.
type untouched struct{ error }

func (u *untouched) Unwrap() error { return u.error }
