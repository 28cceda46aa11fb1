// Package worker runs work that may block in the kernel in child processes of this
// program. The kernel can block a thread that reads another process's memory, or that
// calls a driver, so that no signal ends it. A child that is late is given up: the caller
// stops waiting. This process continues, can always end, and has a bounded number of such
// children.
package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Kind is a kind of work, with its bounds. Its methods may be called concurrently.
type Kind struct {
	Command  []string      // arguments of this program that begin it
	Running  int           // most children that callers wait for; further orders wait in line
	Children int           // most children, including those that were given up
	Limit    time.Duration // for a child, from its start; 0: only the order's context
	Memory   uint64        // bytes of its private memory (RLIMIT_DATA); 0: no limit
	Output   int           // bytes that it may write; 0: 64 KiB
	Confined bool          // it has only the capabilities in Keeps, and cannot get others back
	Keeps    []int
	Parting  time.Duration // that one that was given up may take to end; 0: a second
	Stays    bool          // nothing ends it: not its deadline, and not the end of this process

	mu       sync.Mutex
	running  int
	children int
	line     []*waiter
	given    map[string]int // children that were given up, by owner
	served   map[string]int // when an owner's last child began, in children
	begun    int
}

// An Order is work for one child.
type Order struct {
	Args  []string
	Env   []string   // besides this process's
	Files []*os.File // its descriptors from 3 on
	// Of is the owner of the work. While the kernel holds a child of an owner, the owner's
	// next order waits, so an owner has at most one held child. Other owners do not wait
	// for that; all take turns. Where nothing ends children, an order fails at once if as
	// many of its owner's were given up as there is room left. Empty: the work has no owner.
	Of string
	// Spare is the number of further children that must still have room. An order without
	// that room fails at once instead of waiting.
	Spare int
}

// A waiter is an order in line.
type waiter struct {
	of  string
	now chan struct{} // closed when it may begin
}

// Full is the error of an order for which there is no room.
type Full struct{ Children int }

func (f *Full) Error() string {
	return fmt.Sprintf("%d earlier children have not ended: the kernel holds them", f.Children)
}

// Register makes a process that was started with the arguments of Begins(name) run work
// and end, instead of running this program. init functions call it, so each program that
// links the package, and each test of it, can do the work.
func Register(name string, work func(args []string) error) {
	if len(os.Args) < 3 || !slices.Equal(os.Args[1:3], Begins(name)) {
		return
	}
	if err := work(os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0) // the race detector would delay os.Exit
}

// Begins returns the arguments that start registered work.
func Begins(name string) []string { return []string{"worker", name} }

// Do runs the work in a child and returns what the child wrote, even if it failed or was
// given up. It returns soon after ctx ends.
func (k *Kind) Do(ctx context.Context, o Order) ([]byte, error) {
	if err := k.enter(ctx, o); err != nil {
		return nil, err
	}
	if k.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, k.Limit, fmt.Errorf("it took longer than %v: %w", k.Limit,
			context.DeadlineExceeded))
		defer cancel()
	}
	c := k.child(o)
	go k.run(c, o.Of)
	select {
	case <-c.ended:
		return c.out.text(), c.err
	case <-ctx.Done():
		k.giveUp(c, o.Of)
		if len(o.Files) > 0 {
			<-c.begun // from then on the caller may close them
		}
		if k.Stays {
			return c.out.text(), context.Cause(ctx)
		}
		select { // what it wrote is complete once it has ended, unless the kernel holds it
		case <-c.ended:
			return c.out.text(), context.Cause(ctx)
		case <-time.After(cmp.Or(k.Parting, parting)):
			return c.out.text(), fmt.Errorf("%w, and its process cannot be killed", context.Cause(ctx))
		}
	}
}

// parting is how long a child that was given up may take to end.
const parting = time.Second

// enter waits until the order may begin.
func (k *Kind) enter(ctx context.Context, o Order) error {
	k.mu.Lock()
	if o.Spare > 0 && k.children+o.Spare >= k.Children || k.Running >= k.Children && k.children >= k.Children ||
		k.Stays && o.Of != "" && k.given[o.Of] > 0 && k.given[o.Of] >= k.Children-k.children-o.Spare {
		defer k.mu.Unlock()
		return &Full{k.children}
	}
	w := &waiter{o.Of, make(chan struct{})}
	k.line = append(k.line, w)
	k.next()
	k.mu.Unlock()
	select {
	case <-w.now:
		return nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.Index(k.line, w); i >= 0 {
		k.line = slices.Delete(k.line, i, i+1)
		err := context.Cause(ctx)
		if o.Of != "" && k.given[o.Of] > 0 || k.children >= k.Children {
			err = fmt.Errorf("%w (%w)", &Full{k.children}, err)
		}
		return err
	}
	return nil // it was let in meanwhile, and its child is given up at once
}

// next lets waiting orders begin while there is room. The owner that was served longest
// ago goes first. The caller holds k.mu.
func (k *Kind) next() {
	for k.running < k.Running && k.children < k.Children {
		best := -1
		for i, w := range k.line {
			if (w.of == "" || k.Stays || k.given[w.of] == 0) && (best < 0 || k.served[w.of] < k.served[k.line[best].of]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := k.line[best]
		k.line = slices.Delete(k.line, best, best+1)
		k.running, k.children, k.begun = k.running+1, k.children+1, k.begun+1
		if k.served == nil || len(k.served) > mostOwners {
			k.served, k.given = map[string]int{}, or(k.given)
		}
		k.served[w.of] = k.begun
		close(w.now)
	}
}

// mostOwners bounds the owners whose turns are remembered.
const mostOwners = 1024

func or(m map[string]int) map[string]int {
	if m == nil {
		m = map[string]int{}
	}
	return m
}

// A child is a process, or will be one.
type child struct {
	*exec.Cmd
	out, complaint output
	begun          chan struct{} // closed once it runs, or cannot
	ended          chan struct{} // closed once it has ended, or could not begin
	err            error         // how it failed, once it has ended
	over           bool          // it has ended, and been counted so
	given          bool          // it was given up
}

func (k *Kind) child(o Order) *child {
	c := &child{Cmd: exec.Command("/proc/self/exe", slices.Concat(k.Command, o.Args)...), begun: make(chan struct{}),
		ended: make(chan struct{})}
	c.Env = append(unhooked(os.Environ()), "GOMAXPROCS=2") // few threads on a large host
	c.Env = append(c.Env, o.Env...)
	c.out.left, c.complaint = cmp.Or(k.Output, 64<<10), output{left: 4096, lossy: true}
	c.Stdout, c.Stderr, c.ExtraFiles = &c.out, &c.complaint, o.Files
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal interrupts it
	if !k.Stays {
		c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	return c
}

// run starts a child, and waits for its end however long that takes.
func (k *Kind) run(c *child, of string) {
	// This thread is the child's parent: the child inherits its capabilities and ends when
	// it ends. The thread ends with this goroutine.
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // the first thread never ends
		var on sync.WaitGroup
		on.Go(func() { k.run(c, of) })
		on.Wait()
		runtime.UnlockOSThread()
		return
	}
	var err error
	if k.Confined {
		err = Confine(k.Keeps)
	}
	if err == nil {
		err = c.Start()
	}
	if err == nil && !k.Stays {
		// Where memory is short, as in a unit with MemoryMax, the kernel ends the child and not this process.
		// If this is refused, it chooses by size, as for any other process.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.Process.Pid), []byte("500"), 0)
	}
	if err == nil && k.Memory > 0 && limited {
		limit := unix.Rlimit{Cur: k.Memory, Max: k.Memory}
		if err := unix.Prlimit(c.Process.Pid, unix.RLIMIT_DATA, &limit, nil); err != nil {
			_ = c.Process.Kill()
		}
	}
	close(c.begun)
	if err == nil {
		err = c.end()
	}
	k.mu.Lock()
	c.over = true
	k.children--
	if c.given {
		if k.given[of]--; k.given[of] == 0 {
			delete(k.given, of)
		}
	} else {
		k.running--
	}
	k.next()
	k.mu.Unlock()
	c.err = err
	close(c.ended)
}

// end waits for the child's end and returns how it failed.
func (c *child) end() error {
	err := c.Wait()
	// After a crash, the first line names the reason.
	switch complaint, _, _ := strings.Cut(strings.TrimSpace(string(c.complaint.text())), "\n"); {
	case c.out.full():
		return errors.New("its process writes too much")
	case err != nil && complaint != "":
		return fmt.Errorf("its process failed: %w: %.200s", err, complaint)
	case err != nil:
		return fmt.Errorf("its process failed: %w", err)
	}
	return nil
}

// giveUp stops waiting for a child. It kills the child unless the child is to stay; the
// signal has no effect while the kernel holds the child.
func (k *Kind) giveUp(c *child, of string) {
	k.mu.Lock()
	if !c.over {
		c.given = true
		k.given = or(k.given)
		k.given[of]++
		k.running--
		k.next()
	}
	k.mu.Unlock()
	if !k.Stays {
		go func() {
			<-c.begun
			if c.Process != nil {
				_ = c.Process.Kill()
			}
		}()
	}
}

// Held returns how many children were given up and have not ended.
func (k *Kind) Held() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.children - k.running
}

// Confine drops all capabilities of this thread except some. It also sets
// no_new_privs, so no program that the thread executes gets them back.
func Confine(keep []int) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // the lower and the upper 32
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var kept [2]uint32
	for _, c := range keep {
		kept[c/32] |= 1 << (c % 32)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up capabilities for good: %w", err)
	}
	for i := range sets {
		sets[i].Permitted &= kept[i]
		sets[i].Effective, sets[i].Inheritable = sets[i].Permitted, sets[i].Permitted
	}
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	for _, c := range keep { // a user other than root keeps them over the exec by this
		if sets[c/32].Permitted&(1<<(c%32)) != 0 {
			_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0)
		}
	}
	return nil
}

// unhooked returns an environment without the hook: the hook must not hold back its own
// enforcer.
func unhooked(env []string) []string {
	return slices.DeleteFunc(env, func(one string) bool { return strings.HasPrefix(one, "LD_PRELOAD=") })
}

// An output keeps what a child writes, up to a bound. It reads nothing beyond that, unless it is lossy.
type output struct {
	mu    sync.Mutex
	all   bytes.Buffer
	left  int  // bytes that the child may still write
	over  bool // it wrote more
	lossy bool
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, _ := o.all.Write(p[:min(len(p), o.left)])
	o.left -= n
	if o.over = n < len(p); o.over && !o.lossy {
		return n, io.ErrShortWrite
	}
	return len(p), nil
}

func (o *output) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

func (o *output) text() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.all.Bytes())
}
