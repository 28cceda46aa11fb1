package integration

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// A move is something that happens in a siege, as often as its weight says beside the others. A peer makes
// it, which is a process of the adversary, or the test itself. No move takes longer than a moment.
type move struct {
	name   string
	weight int
	peer   func(p *hostilePeer)
	siege  func(s *siege)
}

// moves are all moves. Honest ones must succeed; hostile ones may do what they can.
var moves = []move{
	{"sessions that end unread", 4, func(p *hostilePeer) {
		p.many(30, func(c *line) { c.hello(wire.TypeHello, "", p.gpu); c.send(wire.TypeBye, nil) })
	}, nil},
	{"statistics that are not read", 3, func(p *hostilePeer) {
		p.many(10, func(c *line) {
			for range 10 {
				c.send(wire.TypeStats, nil)
			}
		})
	}, nil},
	{"many sessions of a process", 4, func(p *hostilePeer) { p.many(40, func(c *line) { c.opens("") }) }, nil},
	{"sessions that come and go", 3, func(p *hostilePeer) {
		p.busy(func() { c := p.dial(); c.hello(wire.TypeHello, "", p.gpu); c.close() })
	}, nil},
	{"sessions as fast as they are given, which ask for absurd numbers", 2, func(p *hostilePeer) {
		p.busy(func() { c := p.dial().opens(""); c.send(wire.TypeReserve, &wire.Memory{Bytes: p.Uint64()}); c.close() })
	}, nil},
	{"connections without end", 3, func(p *hostilePeer) { p.busy(func() { p.dial().close() }) }, nil},
	{"connections that say nothing", 2, func(p *hostilePeer) { p.many(30, func(*line) {}) }, nil},
	{"half a frame", 2, func(p *hostilePeer) {
		p.many(30, func(c *line) { c.write(c.frame(wire.TypeHello, p.says("", p.gpu))[:p.IntN(500)]) })
	}, nil},
	{"a flood of frames", 4, func(p *hostilePeer) {
		c := p.keep(p.dial().opens(""))
		p.busy(func() { c.any(p) })
	}, nil},
	{"floods over many sessions", 3, func(p *hostilePeer) {
		var all []*line
		p.many(10, func(c *line) { all = append(all, c.opens("")) })
		p.busy(func() { all[p.IntN(len(all))].any(p) })
	}, nil},
	{"frames that cannot be read", 4, func(p *hostilePeer) {
		p.busy(func() {
			c := p.dial()
			for _, f := range [][]byte{c.frame(wire.TypeHello, p.says("", p.gpu)),
				c.frame(wire.Type(1+p.IntN(wire.Types-1)), nil)} {
				for range 1 + p.IntN(4) {
					f[p.IntN(len(f))] ^= 1 << p.IntN(8)
				}
				c.write(f)
			}
			c.close()
		})
	}, nil},
	{"descriptors for the broker", 2, func(p *hostilePeer) {
		p.many(5, func(c *line) {
			_ = unix.Sendmsg(c.fd, c.frame(wire.TypeHello, p.says("", p.gpu)), unix.UnixRights(make([]int, 200)...),
				nil, unix.MSG_DONTWAIT)
		})
	}, nil},
	{"memory that nobody has", 4, func(p *hostilePeer) {
		c := p.keep(p.dial())
		lie := p.says("", p.gpu)
		lie.Old, lie.Token, lie.Committed[0] = p.Uint64N(1000), p.Uint64(), 16<<40
		c.send(wire.TypeResume, lie)
		c.hears()
		keeps := p.IntN(2) == 0
		for range 20 {
			if !keeps {
				c.send(wire.TypeFree, &wire.Memory{Bytes: 16 << 40})
			}
			c.send(wire.TypeReserve, &wire.Memory{Bytes: 1 << p.IntN(45), Kind: wire.Kind(p.IntN(8))})
			if h, payload := c.hears(); h.Type == wire.TypeGrant {
				var m wire.Memory
				m.Decode(payload)
				m.Bytes <<= p.IntN(20)
				c.send([]wire.Type{wire.TypeCommit, wire.TypeAbort, wire.TypeFree}[p.IntN(3)], &m)
			}
		}
	}, nil},
	{"one GPU many times", 2, func(p *hostilePeer) {
		p.many(5, func(c *line) { c.hello(wire.TypeHello, "", p.gpu, p.gpu, p.gpu, p.gpu, p.gpu, p.gpu) })
	}, nil},
	{"GPUs that nobody has", 2, func(p *hostilePeer) {
		p.many(5, func(c *line) {
			var invented [wire.GPUs][16]byte
			for i := range invented {
				copy(invented[i][:], fmt.Sprintf("%016x", p.Uint64()))
			}
			c.hello(wire.TypeHello, "", invented[:]...)
		})
	}, nil},
	{"the names of others", 2, func(p *hostilePeer) {
		for _, honest := range []string{"serving", "batch"} {
			c := p.dial()
			c.hello(wire.TypeHello, honest, p.gpu)
			if h, payload := c.hears(); h.Type == wire.TypeWelcome {
				var w wire.Welcome
				if w.Decode(payload); wire.Text(w.Tenant[:]) == honest {
					fmt.Println("was let in as", honest)
				}
			}
			c.close()
		}
	}, nil},
	{"lets go of connections", 3, func(p *hostilePeer) { p.let(len(p.held) / 2) }, nil},
	{"scrapes that are never read", 3, func(p *hostilePeer) {
		for range 10 {
			ask := strings.Repeat(fmt.Sprintf("GET /metrics?x=%d HTTP/1.1\r\nHost: agent\r\n\r\n", p.Uint64()), 40)
			p.asks(p.web, ask)
		}
	}, nil},
	{"scrapes of a chosen name", 2, func(p *hostilePeer) {
		p.busy(func() { p.asks(p.web, fmt.Sprintf("GET /metrics?name[]=n%d HTTP/1.0\r\n\r\n", p.Uint64())) })
		p.let(len(p.held) / 2)
	}, nil},
	{"half a request", 1, func(p *hostilePeer) {
		for range 10 {
			p.asks(p.web, "GET /metrics HTTP/1.1\r\nHost: ")
		}
	}, nil},
	{"connections of Gemini", 3, func(p *hostilePeer) {
		for range 20 {
			noise := make([]byte, p.IntN(200))
			for i := range noise {
				noise[i] = byte(p.Uint32())
			}
			p.asks(p.gemini, string(noise))
		}
	}, nil},
	{"lies about turns", 3, func(p *hostilePeer) {
		c := p.keep(p.dial().opens(""))
		for range 50 {
			c.send(wire.TypeAcquire, &wire.Acquire{GPU: uint32(p.IntN(2))})
			u := wire.Usage{Why: wire.Why(p.IntN(4)), Turn: p.Uint64N(100), Last: p.Uint64(), Launched: p.Uint64(),
				Busy: p.Uint64(), Solo: p.Uint64(),
				SoloTime: p.Uint64(), Longest: p.Uint64(), Overhead: p.Uint64(), Copied: p.Uint64(), Group: p.Uint64()}
			c.send([]wire.Type{wire.TypeYield, wire.TypeUsage}[p.IntN(2)], &u)
			time.Sleep(5 * time.Millisecond)
		}
	}, nil},
	{"wants a turn and does nothing with it", 3, func(p *hostilePeer) {
		p.keep(p.dial().opens("")).send(wire.TypeAcquire, &wire.Acquire{})
	}, nil},
	{"kill -9", 3, nil, func(s *siege) { s.respawn(s.IntN(len(s.peers))) }},
	{"another cgroup", 3, nil, func(s *siege) {
		s.moveTo(s.peers[s.IntN(len(s.peers))].pid, []string{"hostile", "around"}[s.IntN(2)])
	}},
	{"threads that are cancelled", 2, nil, func(s *siege) {
		s.load("hostile", true, "--kernel-us=200", "--sync-every=8", "--threads=2", "--cancel-ms=20", "--seconds=2")
	}},
	{"long kernels", 1, nil, func(s *siege) {
		s.load("hostile", true, "--kernel-us=20000", "--sync-every=1", "--seconds=1")
	}},
	{"is killed within a turn", 2, nil, func(s *siege) {
		s.load("hostile", true, "--kernel-us=500", "--sync-every=8", "--alloc-mib=512", "--seconds=5").
			killAfter(time.Duration(200+s.IntN(800)) * time.Millisecond)
	}},
	{"a short life around the hook", 1, nil, func(s *siege) {
		s.load("around", false, "--kernel-us=200", "--sync-every=8", "--seconds=0.5")
	}},
	{"honest: a job", 3, nil, func(s *siege) { s.job(64 * (1 + s.IntN(16))) }},
	{"honest: another configuration", 1, nil, func(s *siege) { s.reload() }},
	{"honest: other pages", 2, nil, func(s *siege) {
		s.sees([]string{"/metrics?name[]=nvgpu_up", "/api/v1/state", "/metrics/dcgm", "/-/ready"}[s.IntN(4)])
	}},
}

// asPeer is the environment variable that makes the test binary a peer. It has
// the addresses of the broker, the observer and Gemini's server.
const asPeer = "GPUSTEWARD_TEST_AS_PEER"

// A hostilePeer is this process as a hostile one, or as an honest one that opens session after session.
type hostilePeer struct {
	*rand.Rand
	socket, web, gemini string
	gpu                 [16]byte
	held                []func() // close kept connections
}

// besiege makes the moves that standard input names, each by its place and a
// seed, and reports each one. It ends with its input.
func besiege(addresses string) {
	f := strings.Split(addresses, ",")
	p := &hostilePeer{socket: f[0], web: f[1], gemini: f[2], gpu: stubGPU}
	if f[3] == "honest" {
		p.comes()
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var i int
		var seed uint64
		if _, err := fmt.Sscan(lines.Text(), &i, &seed); err != nil {
			panic(err)
		}
		p.Rand = rand.New(rand.NewPCG(seed, 0))
		p.let(len(p.held) - 500)
		moves[i].peer(p)
		fmt.Println("done")
	}
}

// comes opens a session four times a second. It prints how long each took, in
// milliseconds, and how often it was refused meanwhile.
func (p *hostilePeer) comes() {
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // its end
		os.Exit(0)
	}()
	for {
		began, refused := time.Now(), 0
		for ; ; refused++ {
			c := p.dial()
			c.hello(wire.TypeHello, "", p.gpu)
			h, _ := c.hears()
			c.close()
			if h.Type == wire.TypeWelcome {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Println(time.Since(began).Milliseconds(), refused)
		time.Sleep(250 * time.Millisecond)
	}
}

// let closes the n oldest of the kept connections.
func (p *hostilePeer) let(n int) {
	n = max(n, 0)
	for _, closes := range p.held[:n] {
		closes()
	}
	p.held = p.held[n:]
}

// busy repeats something for a fifth of a second.
func (p *hostilePeer) busy(do func()) {
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		do()
	}
}

// many keeps n connections to the broker, and does something on each.
func (p *hostilePeer) many(n int, do func(c *line)) {
	for range n {
		do(p.keep(p.dial()))
	}
}

func (p *hostilePeer) keep(c *line) *line {
	p.held = append(p.held, c.close)
	return c
}

// asks keeps a TCP connection on which it writes and never reads.
func (p *hostilePeer) asks(address, text string) {
	c, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
	if err != nil {
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	_, _ = c.Write([]byte(text))
	p.held = append(p.held, func() { _ = c.Close() })
}

// says returns a HELLO.
func (p *hostilePeer) says(tenant string, gpus ...[16]byte) *wire.Hello {
	h := &wire.Hello{PID: 1, GPUs: uint32(len(gpus)), CUDA: 13000}
	copy(h.Tenant[:], tenant)
	copy(h.UUID[:], gpus)
	return h
}

// A line is a connection to the broker. Only hears waits on it, for at most a second.
type line struct {
	*hostilePeer
	fd      int
	session uint64
}

func (p *hostilePeer) dial() *line {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Connect(fd, &unix.SockaddrUnix{Name: p.socket})
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	}
	return &line{hostilePeer: p, fd: fd}
}

func (c *line) close() { _ = unix.Close(c.fd) }

func (c *line) write(frame []byte) {
	_ = unix.Sendto(c.fd, frame, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
}

type appender interface{ Append([]byte) []byte }

func (c *line) frame(t wire.Type, m appender) []byte {
	b := wire.Header{Type: t, Seq: 1, Session: c.session}.Append(nil)
	if m != nil {
		b = m.Append(b)
	}
	return b
}

func (c *line) send(t wire.Type, m appender) { c.write(c.frame(t, m)) }

func (c *line) hello(t wire.Type, tenant string, gpus ...[16]byte) {
	c.send(t, c.says(tenant, gpus...))
}

// hears returns the next message, or one without a type if there is none. It
// does not take a descriptor that comes with it.
func (c *line) hears() (wire.Header, []byte) {
	frame := make([]byte, wire.FrameMax)
	n, err := unix.Read(c.fd, frame)
	if err != nil {
		return wire.Header{}, nil
	}
	h, payload, err := wire.Decode(frame[:n])
	if err != nil {
		return wire.Header{}, nil
	}
	if h.Type == wire.TypeWelcome {
		c.session = h.Session
	}
	return h, payload
}

// opens opens a session that has a context on the GPU.
func (c *line) opens(tenant string) *line {
	c.hello(wire.TypeHello, tenant, c.gpu)
	c.hears()
	c.send(wire.TypeUsage, &wire.Usage{})
	return c
}

// any sends one of the messages of a session.
func (c *line) any(p *hostilePeer) {
	switch p.IntN(5) {
	case 0:
		c.send(wire.TypePing, nil)
	case 1:
		c.send(wire.TypeYield, &wire.Usage{Why: wire.WhyDrained, Launched: p.Uint64N(100)})
	case 2:
		c.send(wire.TypeUsage, &wire.Usage{Launched: p.Uint64N(100), Busy: p.Uint64N(1e9)})
	case 3:
		c.send(wire.TypeReserve, &wire.Memory{Bytes: p.Uint64N(1 << 20)})
	case 4:
		c.send(wire.TypeFree, &wire.Memory{Bytes: p.Uint64N(1 << 20)})
	}
}
