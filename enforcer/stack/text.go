package stack

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
)

// JSON writes a process for programs.
func (p *Process) JSON() string {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		panic(err) // it is made of strings and numbers
	}
	return string(text) + "\n"
}

// Text writes a process for people: each thread, what it waits for, the place of
// its instruction pointer, and its Python frames with the innermost first.
func (p *Process) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "process %d (%s)", p.PID, p.Name)
	if p.Python != nil {
		fmt.Fprintf(&b, ", Python %s", p.Python.Version)
	}
	if n := len(p.Threads) + p.Omitted; n == 1 {
		b.WriteString(", 1 thread")
	} else {
		fmt.Fprintf(&b, ", %d threads", n)
	}
	if p.Omitted > 0 {
		fmt.Fprintf(&b, " (%d left out)", p.Omitted)
	}
	b.WriteByte('\n')
	if p.Python != nil && !p.Python.Verified {
		b.WriteString("not verified: gpusteward was never tested with this version of Python on this architecture\n")
	}
	if p.Problem != "" {
		fmt.Fprintf(&b, "not all of it was read: %s\n", p.Problem)
	}
	for _, t := range p.Threads {
		t.text(&b)
	}
	return b.String()
}

func (t Thread) text(b *strings.Builder) {
	if t.TID == 0 {
		b.WriteString("\na Python thread whose TID is not known")
	} else {
		fmt.Fprintf(b, "\nthread %d (%s), %s", t.TID, t.Name, t.State)
	}
	if t.Syscall != "" {
		fmt.Fprintf(b, ", system call %s", t.Syscall)
	}
	if t.WaitChannel != "" {
		fmt.Fprintf(b, ", in the kernel's %s", t.WaitChannel)
	}
	b.WriteByte('\n')
	if t.Problem != "" {
		fmt.Fprintf(b, "    Python: %s\n", t.Problem)
	}
	if n := t.Native; n != nil {
		fmt.Fprintf(b, "    %s", filepath.Base(n.File))
		if n.Symbol != "" {
			fmt.Fprintf(b, " %s", n.Symbol)
		}
		fmt.Fprintf(b, "+%#x\n", n.Offset)
	}
	for _, f := range t.Python {
		line := "?"
		if f.Line > 0 {
			line = fmt.Sprint(f.Line)
		}
		fmt.Fprintf(b, "    %s:%s %s\n", f.File, line, f.Function)
	}
	if len(t.Python) == maxFrames {
		b.WriteString("    outer frames are left out\n")
	}
}
