//go:build long

package integration

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

var endings = flag.Int("adversary.endings", 20, "`times` that both processes are ended under attack")

// TestEndsUnderAttack ends the enforcer and the observer again and again while the adversary's processes make
// all of their moves at once, 200 clients read no answer, and 300 scrape without a pause.
func TestEndsUnderAttack(t *testing.T) {
	s := newSiege(t, rand.Uint64())
	s.chooses(t, *adversaryMoves)
	waits, longest := fixture.WatchWaits(t), time.Duration(0)
	for n := range *endings {
		if n > 0 {
			s.enforce()
			s.observe().ready()
		}
		end := s.storm()
		enforcer, observer := s.clock(s.enforcer), s.clock(s.observer)
		began, at := time.Now(), time.Duration(fixture.Monotonic())
		for _, a := range []*agent{s.enforcer, s.observer} {
			waits.Add(a.pid)
			fixture.Must(t, syscall.Kill(a.pid, syscall.SIGTERM))
		}
		fixture.Equal(t, s.enforcer.wait(), 0, "exit status of the enforcer")
		fixture.Equal(t, s.observer.wait(), 0, "exit status of the observer")
		enforced := enforcer() - at
		took := max(enforced, observer()-at)
		waited := waits.Most(began, began.Add(took))
		t.Logf("%3d: the enforcer ended after %v, and both had after %v; one waited %v of it for a processor", n+1,
			enforced, took, waited)
		longest = max(longest, took-waited)
		end()
	}
	fixture.AtMost(t, longest, 2*time.Second, "the longest end took")
}

// clock returns a function that returns when a process has ended, by CLOCK_MONOTONIC. Another process sees
// that, which waits for nobody as this one does.
func (s *siege) clock(a *agent) (ended func() time.Duration) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asClock+"="+strconv.Itoa(a.pid))
	out := bufio.NewReader(fixture.Value(cmd.StdoutPipe())(s))
	s.at(first, func() { fixture.Must(s, cmd.Start()) })
	says := func() (ns time.Duration) {
		s.Helper()
		fixture.Must(s, fixture.Error(fmt.Fscan(out, &ns)))
		return ns
	}
	says() // it watches
	return func() time.Duration { defer cmd.Wait(); return says() }
}

// asClock is the environment variable that makes the test binary watch the end of a process.
const asClock = "GPUSTEWARD_TEST_AS_CLOCK"

func init() {
	pid, err := strconv.Atoi(os.Getenv(asClock))
	if err != nil {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	for range 2 {
		if fmt.Println(fixture.Monotonic()); err != nil {
			panic(err)
		}
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		}
	}
	os.Exit(0)
}

// storm begins an attack on everything, and returns once it is under way.
func (s *siege) storm() (end func()) {
	attack, over := context.WithCancel(s.Context())
	var running sync.WaitGroup
	var asked, scraped atomic.Int64
	observer := s.observer
	for i := range 200 {
		running.Go(func() { neverReads(attack, i, strings.TrimPrefix(observer.url, "http://"), &asked) })
	}
	for range 300 {
		running.Go(func() {
			for attack.Err() == nil {
				_, _, _ = observer.fetch("/metrics")
				scraped.Add(1)
			}
		})
	}
	s.peers = make([]*besieger, len(besiegers))
	for i := range s.peers {
		s.respawn(i)
	}
	running.Go(func() {
		for tick := time.Tick(time.Millisecond); attack.Err() == nil; <-tick {
			for _, p := range s.peers {
				select {
				case <-p.free:
					m, n := s.drawn()
					for ; m.peer == nil; m, n = s.drawn() {
					}
					_, _ = fmt.Fprintln(p.in, n, s.Uint64())
				default:
				}
			}
		}
	})
	eventually(s.T, "the attack is under way", func() bool { return asked.Load() > 100 && scraped.Load() > 20 })
	time.Sleep(rand.N(2 * time.Second)) // at any moment of it
	return func() {
		over()
		for i := range s.peers {
			s.end(i)
		}
		running.Wait()
	}
}
