package gemini

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// errNotListed means that this host's kernel has no such socket: it belongs to
// another host or network namespace, or is closed.
var errNotListed = errors.New("the kernel does not list the socket")

// rootCgroup is the id of the root of cgroups of version 2: every process is in
// it if only version 1 is used.
const rootCgroup = 1

// A socket is the kernel's record of the other end of a connection. The zero
// value is an unlisted one.
type socket struct {
	inode  uint32
	cgroup uint64 // that it was made in: the id, which is the inode of its directory
}

// Offsets of sock_diag(7), after the header of 16 bytes: of the request, struct
// inet_diag_req_v2; of the answer, struct inet_diag_msg.
const (
	diagRequest    = 16 + 56 // bytes
	diagInode      = 16 + 68
	diagAttributes = 16 + 72

	sockDiagByFamily = 20 // linux/sock_diag.h
	inetDiagCgroupID = 21 // linux/inet_diag.h
)

// lookup returns the TCP socket that is bound to own and connected to other;
// for a listening one, other is unspecified. It does not wait, and needs no
// rights.
func lookup(own, other netip.AddrPort) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return socket{}, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var ask [diagRequest]byte
	ours := binary.NativeEndian
	ours.PutUint32(ask[:], diagRequest)
	ours.PutUint16(ask[4:], sockDiagByFamily)
	ours.PutUint16(ask[6:], unix.NLM_F_REQUEST)
	ask[16], ask[17] = unix.AF_INET, unix.IPPROTO_TCP
	if own.Addr().Is6() {
		ask[16] = unix.AF_INET6
	}
	ours.PutUint32(ask[20:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(ask[24:], own.Port())
	binary.BigEndian.PutUint16(ask[26:], other.Port())
	copy(ask[28:], own.Addr().AsSlice())
	copy(ask[44:], other.Addr().AsSlice())
	ours.PutUint64(ask[64:], ^uint64(0)) // whatever its cookie
	if err := unix.Sendto(fd, ask[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return socket{}, fmt.Errorf("ask for the socket: %w", err)
	}
	var answer [4096]byte
	n, _, err := unix.Recvfrom(fd, answer[:], 0) // the kernel has answered already
	if err != nil {
		return socket{}, fmt.Errorf("ask for the socket: %w", err)
	}
	return parseSocket(answer[:n])
}

// parseSocket reads the kernel's answer.
func parseSocket(answer []byte) (socket, error) {
	ours := binary.NativeEndian
	switch {
	case len(answer) >= 20 && ours.Uint16(answer[4:]) == unix.NLMSG_ERROR:
		err := unix.Errno(-int32(ours.Uint32(answer[16:])))
		if err == unix.ENOENT {
			return socket{}, errNotListed
		}
		return socket{}, fmt.Errorf("ask for the socket: %w", err)
	case len(answer) < diagAttributes:
		return socket{}, errors.New("ask for the socket: the answer is too short")
	}
	s := socket{inode: ours.Uint32(answer[diagInode:])}
	for rest := answer[diagAttributes:]; len(rest) >= 4; {
		size := int(ours.Uint16(rest))
		if size < 4 || size > len(rest) {
			break
		}
		if ours.Uint16(rest[2:]) == inetDiagCgroupID && size >= 12 {
			s.cgroup = ours.Uint64(rest[4:])
		}
		rest = rest[min((size+3)&^3, len(rest)):]
	}
	return s, nil
}
