package ras

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"gpusteward/internal/fixture"
)

// recorded returns an answer of NCCL: of 2.28.9, unless its name has another version.
func recorded(t testing.TB, name string) string {
	t.Helper()
	return string(fixture.Value(os.ReadFile("testdata/" + name))(t))
}

func mustParse(t testing.TB, text string) Status {
	t.Helper()
	return fixture.Value(parse([]byte(text)))(t)
}

// serve answers as many clients, and returns the address and what ends with the server.
func serve(t *testing.T, answers ...func(net.Conn)) (string, chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fixture.Must(t, err)
	t.Cleanup(func() { l.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, answer := range answers {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
	return l.Addr().String(), done
}

// nccl speaks as NCCL does; before 2.28 it knows no formats.
func nccl(formats bool, answer string) func(net.Conn) {
	return func(conn net.Conn) {
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			reply := "OK\n"
			switch line := lines.Text(); {
			case strings.HasPrefix(line, "client protocol "):
				reply = "SERVER PROTOCOL 2\n"
			case line == "set format json" && !formats:
				reply = "ERROR: Unknown command set format json\n"
			case line == "verbose status":
				io.WriteString(conn, answer)
				return
			}
			io.WriteString(conn, reply)
		}
	}
}

func TestAsk(t *testing.T) {
	ranks := func(first, second uint64) []Rank {
		return []Rank{{Rank: 0, Host: "192.0.2.2", PID: 618, Counts: map[string]uint64{"AllReduce": first}},
			{Rank: 1, Host: "192.0.2.2", PID: 656, Counts: map[string]uint64{"AllReduce": second}}}
	}
	for _, c := range []struct {
		file    string
		formats bool
	}{{"mismatch.json", true}, {"mismatch.txt", false}} {
		address, _ := serve(t, nccl(c.formats, recorded(t, c.file)))
		s, err := Ask(t.Context(), address)
		fixture.Stop(t, err != nil || len(s.Communicators) != 1 || s.Version != "2.28.9", "%s: %+v: %v", c.file, s, err)
		for _, r := range s.Communicators[0].Ranks {
			for name, n := range r.Counts {
				if n == 0 {
					delete(r.Counts, name)
				}
			}
		}
		got := s.Communicators[0].Ranks
		fixture.If(t, !reflect.DeepEqual(got, ranks(1212, 1200)), "%s: %+v", c.file, got)
	}
}

// TestAskBadServers: a question ends, and its connection with it.
func TestAskBadServers(t *testing.T) {
	t.Parallel()
	endless := func(begin string) func(net.Conn) {
		return func(conn net.Conn) {
			io.WriteString(conn, begin)
			for {
				if _, err := conn.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}
	}
	fixture.Fails(t, fixture.Error(Ask(t.Context(), "127.0.0.1:0")), "connect to NCCL's RAS", "without a listener")
	for _, c := range []struct {
		name   string
		answer func(net.Conn)
		want   string
	}{
		{"silent", nil, "context canceled"}, // whoever asks gives up
		{"closes", func(net.Conn) {}, "ask NCCL's RAS"},
		{"another protocol", func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n") }, `answers "SSH-2.0`},
		{"endless line", endless(""), "ask NCCL's RAS"},
		{"endless answer", endless("SERVER PROTOCOL 2\nOK\nOK\n"), "too long"},
		{"garbage", nccl(true, "what?"), `answers "what?"`},
		{"half an answer", nccl(true, recorded(t, "even.json")[:500]), "understand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			answer := c.answer
			if answer == nil {
				answer = func(conn net.Conn) {
					conn.Read(make([]byte, 1))
					cancel()
					io.Copy(io.Discard, conn)
				}
			}
			address, done := serve(t, answer)
			fixture.Fails(t, fixture.Error(Ask(ctx, address)), c.want, "the question")
			<-done // the connection is closed
		})
	}
}

// TestAskStopped: the kernel chooses a process that a signal stopped, and then another one.
func TestAskStopped(t *testing.T) {
	t.Parallel()
	stopped := func(conn net.Conn) { io.Copy(io.Discard, conn) }
	address, _ := serve(t, stopped, nccl(true, recorded(t, "even.json")))
	s, err := Ask(t.Context(), address)
	fixture.If(t, err != nil || s.Size() != 2, "%+v: %v", s, err)
}

func TestMissing(t *testing.T) {
	for _, file := range []string{"missing.json", "missing.txt"} {
		s := mustParse(t, recorded(t, file))
		ranks := s.Communicators[0].Ranks
		if last := ranks[len(ranks)-1]; !last.Missing || last.Rank != 1 || last.PID != 885 || last.Host != "192.0.2.2" {
			t.Errorf("%s: %+v", file, ranks)
		}
	}
}

// TestText has lines in every order in which NCCL's source puts them (testdata/source-*). No answer of an older one is
// recorded.
func TestText(t *testing.T) {
	counts := func(n uint64) map[string]uint64 { return map[string]uint64{total: n} }
	for file, want := range map[string][]Communicator{"source-2.24.txt": {
		{ID: "78db921d1c117b4a", Ranks: []Rank{
			{Rank: 5, Missing: true},
			{Rank: -1, Counts: counts(64)},
			{Rank: 6, Host: "10.0.0.2", PID: 20, Counts: counts(60)},
			{Rank: 7, Host: "10.0.0.2", PID: 21, Counts: counts(60)},
			{Rank: 2, Counts: counts(0)},
		}},
		{ID: "00db921d1c117b4a", Closing: true},
	}, "source-2.27.txt": {{ID: "aa", Closing: true}, {ID: "bb", Ranks: []Rank{
		{Rank: 0, Host: "10.0.0.1", PID: 10, Counts: map[string]uint64{"Broadcast": 2, "AllReduce": 7}},
		{Rank: -1, Counts: map[string]uint64{"Broadcast": 0}},
		{Rank: 1, Host: "10.0.0.1", PID: 11, Counts: map[string]uint64{"AllReduce": 0}},
		{Rank: -1, Counts: map[string]uint64{"AllReduce": 6}},
	}}}} {
		got := mustParse(t, recorded(t, file)).Communicators
		fixture.If(t, !reflect.DeepEqual(got, want), "%s: %+v, want %+v", file, got, want)
	}
}

func TestClosing(t *testing.T) {
	text := recorded(t, "mismatch.json")
	for _, c := range []struct{ from, to string }{
		{`"finalize_called": false`, `"finalize_called": true`}, {`"abort_flag": false`, `"abort_flag": true`},
		{`"destroy_flag": false`, `"destroy_flag": true`}, {`"async_error": 0`, `"async_error": 6`},
		{`"init_state": 0`, `"init_state": 7`},
	} {
		changed := strings.Replace(text, c.from, c.to, 1)
		s := mustParse(t, changed)
		fixture.If(t, !s.Communicators[0].Closing, "%s: %+v", c.to, s)
	}
	there := strings.Replace(recorded(t, "missing.json"), `"unresponsive": true`, `"unresponsive": false`, 1)
	fixture.If(t, !mustParse(t, there).Communicators[0].Closing || mustParse(t, text).Communicators[0].Closing,
		"a rank that answers without the communicator has left it")
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"mismatch.json", "mismatch.txt", "missing.json", "missing.txt", "even.json"} {
		f.Add(recorded(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse([]byte(text))
		fixture.If(t, err != nil && len(s.Communicators) > 0, "%+v with an error", s)
		var w Watch
		w.See(0, s)
		w.See(Patience, s)
		for _, h := range w.Hangs(Patience, Patience) {
			fixture.If(t, len(h.Culprits) == 0 || len(h.Waiting) == 0 && !h.Culprits[0].Missing, "%+v", h)
		}
	})
}

// TestTooManyRanks: what a liar tells takes little memory.
func TestTooManyRanks(t *testing.T) {
	t.Parallel()
	entries := strings.Repeat("{},", 5*maxRanks) + "{}"
	fixture.Fails(t, fixture.Error(parse([]byte(`{"communicators": [{"ranks": [`+entries+`]}]}`))), "", "the answer")
	var names strings.Builder
	for i := range maxNames {
		fmt.Fprintf(&names, `"%d": 1, `, i)
	}
	fixture.Fails(t, fixture.Error(parse([]byte(`{"communicators": [{"ranks": [{"collective_counts": {`+names.String()+`"a": 1}}]}]}`))), "", "many names")
	var text strings.Builder
	text.WriteString("NCCL version 2.27.5 compiled with CUDA 12.8\n#0-0 (aa) INCOMPLETE\n")
	for i := range 2 * maxRanks {
		fmt.Fprintf(&text, "  Rank %d -- \n", i)
	}
	n := len(mustParse(t, text.String()).Communicators[0].Ranks)
	fixture.If(t, n > maxRanks || n < maxRanks/2, "%d ranks", n)
	var w Watch
	ranks := slices.Repeat([]Rank{{Counts: map[string]uint64{"AllReduce": 1, "AllGather": 1}}}, maxRanks/2)
	for i := range 10 {
		w.See(time.Duration(i), Status{Communicators: []Communicator{{ID: fmt.Sprint(i), Ranks: ranks}}})
	}
	fixture.AtMost(t, len(w.known), 3, "communicators are known")
}

// TestHostileAnswersTakeLittleMemory has a server tell as much as it can, again and again: answers
// that are larger in memory than as text, or of which little is kept.
func TestHostileAnswersTakeLittleMemory(t *testing.T) {
	fixture.OneGoroutine(t)
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as the program has it
	heap := func() int {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapSys-m.HeapReleased) >> 20
	}
	var names strings.Builder
	for i := range maxNames {
		fmt.Fprintf(&names, `"%d":1,`, i)
	}
	const comm, end = `{"communicators":[{"hash":"00","ranks":[`, `]}]}`
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		head, unit, tail string
		most             int // units
	}{
		"numbers for ranks":        {comm, `0,`, "0" + end, maxSize},
		"nulls for ranks":          {comm, `null,`, "null" + end, maxSize},
		"nulls for missing ranks":  {strings.Replace(comm, "ranks", "missing_ranks", 1), `null,`, "null" + end, maxSize},
		"nulls for communicators":  {`{"communicators":[`, `null,`, `null]}`, maxSize},
		"as many ranks as may be":  {comm, `{"host":"x"},`, "{}" + end, maxRanks - 3},
		"as many counts as may be": {comm, `{"collective_counts":{` + names.String() + `"0":1}},`, "{}" + end, maxValues / (maxNames + 4)},
		"counts of one rank":       {comm + `{"collective_counts":{`, `"a":1,`, `"b":1}}` + end, maxSize},
		"a deep list":              {`{"x":`, "[", "", maxSize},
		"lost commas":              {`{"x":[`, `1 "status":`, "", maxSize},
		"a long name":              {comm[:len(comm)-10], long, `"}]}`, maxSize},
		"a long name, escaped":     {comm[:len(comm)-10], `\u0001`, `"}]}`, maxSize},
		"objects of no meaning":    {`{"x":[`, `{},`, `{}]}`, maxSize},
		"objects in objects":       {"", `{"ranks":`, "", maxSize},
		"empty communicators":      {`{"communicators":[`, `{},`, `{}]}`, maxSize},
		"lists in ranks":           {comm, `[],`, "[]" + end, maxSize},
		"a long number":            {comm + `{"rank":1`, "0", "}" + end, maxSize},
		"ranks of one name twice":  {comm + `{"rank":0},{"`, `rank":1,"`, `rank":1}` + end, maxSize},
		"lines of ranks":           {"NCCL version 2.28\n#0-0 (00) MISMATCH\n", "  Rank 1 has launched up to operation 3 -- GPU 0 managed by process 1 on node x\n", "", maxSize},
		"lines of communicators":   {"NCCL version 2.28\n", "#0-0 (00) MISMATCH\n", "", maxSize},
		"a long text":              {"NCCL version 2\n#0-0 (00) ERROR\n", long, "", maxSize},
	} {
		t.Run(name, func(t *testing.T) {
			units := min(c.most, (maxSize-len(c.head)-len(c.tail)-1)/len(c.unit))
			answers := 2
			if c.unit == long { // it may be kept each time
				answers = 10
			}
			answer := slices.Concat([]byte(c.head), bytes.Repeat([]byte(c.unit), units), []byte(c.tail))
			id := max(strings.Index(c.head, "00"), 0)
			taken := func() (most int) {
				debug.FreeOSMemory()
				before := heap()
				var w Watch
				for i := range answers {
					if id > 0 {
						answer[id] = '0' + byte(i)
					}
					s, err := parse(answer)
					if err != nil && s.Size() > 0 {
						t.Error("an answer is taken in spite of an error:", err)
					}
					w.See(0, s)
					w.Hangs(0, Patience)
					most = max(most, heap()-before)
				}
				return most
			}
			most := taken()
			for tries := 0; most > 64 && tries < 10; tries++ { // the collector may be late on a busy machine
				most = taken()
			}
			fixture.AtMost(t, most, 64, "MiB")
		})
	}
}

// TestRefuse: a version with a fault is not asked, nor is an unknown one.
func TestRefuse(t *testing.T) {
	for _, c := range []struct{ version, trusted, want string }{
		{"", "", "not known"}, {"2.28", "", "not known"}, {"2.28.x", "", "not known"}, {"", "2", "not known"},
		{"2.23.4", "", "no RAS"},
		{"2.24.3", "", "1669, 1718"}, {"2.26.2", "", "1762"}, {"2.26.5", "", "1762"},
		{"2.27.3", "", "2346"}, {"2.28.9", "", "2346"}, {"2.29.7", "", "2346"}, {"2.30.7", "", "2346"}, {"3.1.0", "", "2346"},
		{"2.28.9", "2.28.9", ""}, {"2.28.9", "2.28", ""}, {"2.28.9", "2.2", "2346"}, {"2.28.19", "2.28.1", "2346"},
	} {
		err := Refuse(c.version, strings.Fields(c.trusted))
		if c.want == "" {
			fixture.Must(t, err)
			continue
		}
		fixture.Fails(t, err, c.want, "%s, trusted %q", c.version, c.trusted)
	}
	// Each fault is known by its whole range, and a repaired one ends with it.
	fixture.Equal(t, fmt.Sprint(faults), "[{[2 24 0] [2 27 3] 1669, 1718 while it makes communicators} "+
		"{[2 26 0] [2 29 2] 1762 while a rank does not answer} {[2 27 3] [0 0 0] 2346 while it makes communicators}]", "faults")
}

func TestVersionIn(t *testing.T) {
	t.Parallel()
	const text = "\x00NCCL version 2.28.9+cuda12.9\x00"
	read := func(s string) string { return VersionIn(strings.NewReader(s)) }
	for at := 1<<20 - 70; at < 1<<20+10; at++ { // wherever a piece ends
		fixture.Need(t, read(strings.Repeat("x", at)+text+strings.Repeat("x", 1<<20)), "2.28.9", "at %d", at)
	}
	for data, want := range map[string]string{
		"": "", text: "2.28.9", text + "NCCL version 2.28.9 compiled with CUDA": "2.28.9",
		text + "NCCL version 2.27.3": "", "compiled with NCCL version %d": "", "NCCL version 2.28": ""} {
		fixture.Equal(t, read(data), want, "%q", data)
	}
	fixture.Equal(t, VersionIn(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrClosedPipe))), "", "half a file")
	for name, want := range map[string]bool{"libnccl.so.2": true, "libnccl.so.2.28.9": true, "libnccl-1a2b3c.so.2": true,
		"libtorch_cuda.so": false, "libnccl.txt": false} {
		fixture.Equal(t, IsLibrary(name), want, "%s", name)
	}
}
