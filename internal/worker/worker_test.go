package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

func init() {
	Register("test", func(args []string) error {
		switch args[0] {
		case "echo":
			_, err := fmt.Print(args[1:], os.Getenv("GS_TEST"), os.Getenv("LD_PRELOAD"))
			return err
		case "fail":
			return errors.New("a reason")
		case "crash":
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "stuck": // where no signal reaches it
			fmt.Print("begun")
			f, err := os.Open(args[1])
			if err == nil {
				at, _ := strconv.Atoi(args[2])
				_, err = f.ReadAt(make([]byte, 1), int64(at)<<12)
			}
			return err
		case "wait":
			fmt.Print("begun")
			_, err := os.ReadFile(args[1]) // a pipe
			return err
		case "flood":
			for {
				fmt.Print(strings.Repeat("x", 4096))
			}
		case "grow":
			for all := [][]byte{}; ; {
				all = append(all, make([]byte, 1<<20))
			}
		case "expendable":
			for {
				if text, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(text) == "500\n" {
					return err
				}
				time.Sleep(time.Millisecond)
			}
		case "status":
			text, err := os.ReadFile("/proc/self/status")
			fmt.Printf("%s", text)
			return err
		}
		return nil
	})
}

func kind(running, children int) *Kind {
	return &Kind{Command: Begins("test"), Running: running, Children: children}
}

func TestWhatAChildDoes(t *testing.T) {
	t.Setenv("LD_PRELOAD", "libnothing.so")
	small := &Kind{Command: Begins("test"), Running: 1, Children: 1, Memory: 200 << 20, Output: 1 << 20}
	for name, c := range map[string]struct{ out, err string }{
		"echo a b": {"[a b]x", ""},
		"fail":     {"", "its process failed: exit status 1: a reason"},
		"crash":    {"", "signal: killed"},
		"flood":    {strings.Repeat("x", 1<<20), "writes too much"},
		"grow":     {"", "its process failed: exit status 2: "}, // without memory, or the room to start a thread
	} {
		if name == "grow" && !limited {
			continue
		}
		out, err := small.Do(t.Context(), Order{Args: strings.Fields(name), Env: []string{"GS_TEST=x"}})
		fixture.Equal(t, string(out), c.out, "%s writes", name)
		fixture.If(t, (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err),
			"%s: %v, want %q", name, err, c.err)
	}
	fixture.Equal(t, small.Held(), 0, "children that are held")
}

// TestAChildIsConfined has a child show what it may do.
func TestAChildIsConfined(t *testing.T) {
	t.Parallel()
	k := &Kind{Command: Begins("test"), Running: 1, Children: 1, Confined: true, Keeps: []int{unix.CAP_SYS_PTRACE}}
	out := fixture.Value(k.Do(t.Context(), Order{Args: []string{"status"}}))(t)
	want := "CapEff:\t0000000000000000"
	if os.Geteuid() == 0 {
		want = "CapEff:\t0000000000080000"
	}
	fixture.Contains(t, string(out), want, "a child's status")
	fixture.Contains(t, string(out), "NoNewPrivs:\t1", "a child's status")
	text := fixture.Value(os.ReadFile("/proc/self/status"))(t)
	fixture.Contains(t, string(text), "NoNewPrivs:\t0", "its parent's status")
}

// TestAChildIsExpendable awaits that the kernel would end a child before its parent, where memory is short.
func TestAChildIsExpendable(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	fixture.Must(t, fixture.Error(kind(1, 1).Do(ctx, Order{Args: []string{"expendable"}})))
}

// TestTheKernelHoldsChildren has children read what is never answered, until there are as many as there may be. An
// owner holds one, whatever he orders; the others' work is done meanwhile. None of the children ends by a signal.
func TestTheKernelHoldsChildren(t *testing.T) {
	path, stuck, letGo := fixture.Stuck(t, nil)
	k := kind(1, 4)
	k.Parting = 10 * time.Millisecond
	order := func(ctx context.Context, of string, args ...string) string {
		out, err := k.Do(ctx, Order{Args: args, Of: of})
		return fmt.Sprint(string(out), ", ", err)
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	threads := func() int { return len(fixture.Value(os.ReadDir("/proc/self/task"))(t)) }
	before := threads()
	for held, owner := range []string{"a", "b", "c"} {
		ctx, late := context.WithCancelCause(t.Context())
		told := make(chan string)
		go func() { told <- order(ctx, owner, "stuck", path, "1") }()
		fixture.Eventually(t, "the kernel holds a child", func() bool { return stuck() == held+1 })
		late(errors.New("late"))
		fixture.Contains(t, <-told, ", late, and its process cannot be killed", "of %s", owner)
		for range 3 { // more would not begin before the first ends
			fixture.Contains(t, order(short(), owner, "echo"), "earlier children have not ended", "the next of %s", owner)
		}
		fixture.Equal(t, order(t.Context(), "another", "echo"), "[], <nil>", "an order of another")
		fixture.Equal(t, k.Held(), held+1, "children that are held")
	}
	fixture.AtMost(t, threads(), before+2*k.Children, "threads")
	_, err := k.Do(t.Context(), Order{Args: []string{"echo"}, Of: "d", Spare: 1})
	full := new(Full)
	fixture.If(t, !errors.As(err, &full) || full.Children != 3, "an order without room to spare: %v", err)
	letGo()
	fixture.Eventually(t, "the children end", func() bool { return k.Held() == 0 })
	fixture.Equal(t, order(t.Context(), "a", "echo"), "[], <nil>", "an order after that")
}

// TestTurns wants those who wait in line to be served by turns, whoever orders most.
func TestTurns(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	fixture.Must(t, syscall.Mkfifo(pipe, 0o600))
	k := kind(1, 2)
	ended := make(chan string, 9)
	inLine := func(n int) {
		fixture.Eventually(t, "an order is in line", func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			return len(k.line) == n
		})
	}
	go func() {
		_, err := k.Do(t.Context(), Order{Args: []string{"wait", pipe}, Of: "many"})
		ended <- fmt.Sprint("many, ", err)
	}()
	w := fixture.Value(os.OpenFile(pipe, os.O_WRONLY, 0))(t) // once the child reads
	for i, of := range []string{"many", "many", "one"} {
		go func() {
			out, err := k.Do(t.Context(), Order{Args: []string{"echo"}, Of: of})
			ended <- fmt.Sprint(of, string(out), err)
		}()
		inLine(i + 1)
	}
	late, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("too late"))
	_, err := k.Do(late, Order{Args: []string{"echo"}, Of: "late"})
	fixture.Equal(t, fmt.Sprint(err), "too late", "an order that does not wait")
	fixture.Must(t, w.Close())
	for _, want := range []string{"many, <nil>", "one[]<nil>", "many[]<nil>", "many[]<nil>"} {
		fixture.Equal(t, <-ended, want, "the next that ends")
	}
}

// TestADeadlineEndsAChild that the kernel does not hold, unless nothing is to end it.
func TestADeadlineEndsAChild(t *testing.T) {
	for _, stays := range []bool{false, true} {
		pipe := filepath.Join(t.TempDir(), "pipe")
		fixture.Must(t, syscall.Mkfifo(pipe, 0o600))
		k := kind(1, 1)
		k.Stays = stays
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := k.Do(ctx, Order{Args: []string{"wait", pipe}})
			result <- err
		}()
		w := fixture.Value(os.OpenFile(pipe, os.O_WRONLY, 0))(t) // once the child reads
		cancel()
		fixture.Equal(t, <-result, context.Canceled, "it ends with")
		if stays {
			fixture.Equal(t, k.Held(), 1, "children that stay")
			fixture.Equal(t, fixture.Error(k.Do(t.Context(), Order{})).Error(), (&Full{1}).Error(), "another order")
			fixture.Must(t, w.Close())
		}
		fixture.Eventually(t, "the child has ended", func() bool { return k.Held() == 0 })
		w.Close()
	}
}

// TestWhatStaysIsShared leaves children behind, of each owner as many as there is room left.
func TestWhatStaysIsShared(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	fixture.Must(t, syscall.Mkfifo(pipe, 0o600))
	k := &Kind{Command: Begins("test"), Running: 16, Children: 16, Stays: true}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	made := func(of string, spare int) (n int) {
		for full := new(Full); !errors.As(fixture.Error(k.Do(late, Order{Args: []string{"wait", pipe}, Of: of, Spare: spare})), &full); n++ {
		}
		return n
	}
	fixture.Equal(t, fmt.Sprint(made("a", 4), made("a", 0), made("b", 0), made("c", 0)), "6 2 4 2", "children")
	fixture.Eventually(t, "all have ended", func() bool {
		w, _ := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0) // fails while none reads
		_ = w.Close()
		return k.Held() == 0
	})
}
