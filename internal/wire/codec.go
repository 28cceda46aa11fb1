package wire

// The Append methods append a message's payload, with reserved bytes as zeros.
// The Decode methods read a payload that the package's Decode returned for the
// message's type. They ignore reserved bytes, and panic on a payload of another
// size.

// Append appends m.
func (m *Hello) Append(b []byte) []byte {
	b = append32(b, m.PID, m.GPUs, m.CUDA)
	b = le.AppendUint16(b, m.Leases)
	b = le.AppendUint16(b, m.Unknown)
	b = append(b, m.Hook[:]...)
	b = append(b, m.Tenant[:]...)
	for i := range m.UUID {
		b = append(b, m.UUID[i][:]...)
	}
	b = append64(b, m.Old, m.Token)
	b = append64(b, m.Committed[:]...)
	return append(append(b, m.Trace, m.Crash), make([]byte, 14)...)
}

// Decode reads m from p.
func (m *Hello) Decode(p []byte) {
	_ = p[HelloSize-1]
	m.PID, m.GPUs, m.CUDA = le.Uint32(p), le.Uint32(p[4:]), le.Uint32(p[8:])
	m.Leases, m.Unknown = le.Uint16(p[12:]), le.Uint16(p[14:])
	copy(m.Hook[:], p[16:])
	copy(m.Tenant[:], p[32:])
	for i := range m.UUID {
		copy(m.UUID[i][:], p[96+16*i:])
		m.Committed[i] = le.Uint64(p[368+8*i:])
	}
	m.Old, m.Token, m.Trace = le.Uint64(p[352:]), le.Uint64(p[360:]), p[496]
	m.Crash = p[497]
}

// Append appends m.
func (m *Welcome) Append(b []byte) []byte {
	b = append64(b, m.Token)
	b = append32(b, m.GPUs, m.Heartbeat, m.PageBytes, m.FailClosed)
	b = append32(append(b, m.Tenant[:]...), m.Guarantee, m.Limit)
	b = append32(append64(b, m.Memory), m.MemoryPart, m.Elsewhere)
	return append64(b, 0, 0)
}

// Decode reads m from p.
func (m *Welcome) Decode(p []byte) {
	_ = p[WelcomeSize-1]
	m.Token, m.GPUs, m.Heartbeat = le.Uint64(p), le.Uint32(p[8:]), le.Uint32(p[12:])
	m.PageBytes, m.FailClosed = le.Uint32(p[16:]), le.Uint32(p[20:])
	copy(m.Tenant[:], p[24:])
	m.Guarantee, m.Limit, m.Memory = le.Uint32(p[88:]), le.Uint32(p[92:]), le.Uint64(p[96:])
	m.MemoryPart, m.Elsewhere = le.Uint32(p[104:]), le.Uint32(p[108:])
}

// Append appends m.
func (m *Memory) Append(b []byte) []byte {
	b = append32(b, m.GPU, uint32(m.Kind))
	return append32(append64(b, m.Reservation, m.Bytes), m.Wait, 0)
}

// Decode reads m from p.
func (m *Memory) Decode(p []byte) {
	_ = p[MemorySize-1]
	m.GPU, m.Kind = le.Uint32(p), Kind(le.Uint32(p[4:]))
	m.Reservation, m.Bytes, m.Wait = le.Uint64(p[8:]), le.Uint64(p[16:]), le.Uint32(p[24:])
}

// Append appends m.
func (m *Acquire) Append(b []byte) []byte {
	b = append32(b, m.GPU, 0)
	return append64(b, 0, 0, 0)
}

// Decode reads m from p.
func (m *Acquire) Decode(p []byte) {
	_ = p[AcquireSize-1]
	m.GPU = le.Uint32(p)
}

// Append appends m.
func (m *Usage) Append(b []byte) []byte {
	for _, v := range [...]uint16{m.GPU, m.Slice, uint16(m.Why), m.Refused} {
		b = le.AppendUint16(b, v)
	}
	b = append64(b, m.Turn, m.Last, m.Launched, m.Busy, m.Solo, m.SoloTime, m.Longest, m.Overhead, m.Copied, m.Group)
	return append64(b, m.Passed, m.Errors, m.Uncounted)
}

// Decode reads m from p.
func (m *Usage) Decode(p []byte) {
	_ = p[UsageSize-1]
	m.GPU, m.Slice, m.Why, m.Refused = le.Uint16(p), le.Uint16(p[2:]), Why(le.Uint16(p[4:])), le.Uint16(p[6:])
	m.Turn = le.Uint64(p[8:])
	m.Last, m.Launched, m.Busy = le.Uint64(p[16:]), le.Uint64(p[24:]), le.Uint64(p[32:])
	m.Solo, m.SoloTime = le.Uint64(p[40:]), le.Uint64(p[48:])
	m.Longest, m.Overhead, m.Copied = le.Uint64(p[56:]), le.Uint64(p[64:]), le.Uint64(p[72:])
	m.Group, m.Passed = le.Uint64(p[80:]), le.Uint64(p[88:])
	m.Errors, m.Uncounted = le.Uint64(p[96:]), le.Uint64(p[104:])
}

// Append appends m.
func (m *Notice) Append(b []byte) []byte {
	return append(append32(b, m.Level, 0), m.Text[:]...)
}

// Decode reads m from p.
func (m *Notice) Decode(p []byte) {
	_ = p[NoticeSize-1]
	m.Level = le.Uint32(p)
	copy(m.Text[:], p[8:])
}

// Append appends m.
func (m *Err) Append(b []byte) []byte {
	return append(append32(b, uint32(m.Code), m.Type), m.Text[:]...)
}

// Decode reads m from p.
func (m *Err) Decode(p []byte) {
	_ = p[ErrSize-1]
	m.Code, m.Type = Code(le.Uint32(p)), le.Uint32(p[4:])
	copy(m.Text[:], p[8:])
}

func append32(b []byte, values ...uint32) []byte {
	for _, v := range values {
		b = le.AppendUint32(b, v)
	}
	return b
}

func append64(b []byte, values ...uint64) []byte {
	for _, v := range values {
		b = le.AppendUint64(b, v)
	}
	return b
}
