package gemini

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

func BenchmarkDecode(b *testing.B) {
	text, _ := Request{Name: []byte("client1"), Kind: Quota, Burst: 2.5}.Append(nil)
	frame := (*[RequestSize]byte)(text)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(frame); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRequests has 64 hooks with a connection each. A hook sends one
// request at a time: usage, take, give, and so on. Clients and server share the
// processors.
func BenchmarkRequests(b *testing.B) {
	s := start(b, "2\na 0.5 1 1000000\nb 0.5 1 1000000\n", Options{})
	var frames [3][]byte
	const hooks = 64
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	var conns [hooks]net.Conn
	for i := range conns {
		h := dial(b, s, string("ab"[i%2]))
		h.call(Request{Kind: MemoryLimit})
		conns[i] = h.conn
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i, c := range conns {
		wg.Go(func() {
			var answer [ResponseSize]byte
			frames := frames
			name := []byte{"ab"[i%2]}
			for id := int32(2); left.Add(-1) >= 0; id++ {
				r := [3]Request{{Kind: MemoryLimit}, take(8), give(8)}[id%3]
				r.ID, r.Name = id, name
				frames[id%3], _ = r.Append(frames[id%3][:0])
				if _, err := c.Write(frames[id%3]); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(c, answer[:]); err != nil {
					b.Error(err)
					return
				}
				if a := DecodeResponse(r.Kind, &answer); a.ID != id || r.Kind == MemoryUpdate && !a.Granted {
					b.Errorf("%+v to %+v", a, r)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

func BenchmarkTurn(b *testing.B) {
	w := newWorld(b, 20*ms, Entry{Name: "a", Request: 0.3, Limit: 1}, Entry{Name: "b", Request: 0.7, Limit: 1})
	p := w.add("a", program{})
	q := w.add("b", program{})
	b.ReportAllocs()
	b.ResetTimer()
	for p.turns+q.turns < b.N {
		w.run(20 * ms)
	}
}
