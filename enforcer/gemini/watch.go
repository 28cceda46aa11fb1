package gemini

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watch calls changed at the start and whenever the file at path may have
// another text, until ctx ends. It watches the directory, because a file
// renamed into place is a new one, and looks for a missing one again and again.
func watch(ctx context.Context, path string, again time.Duration, changed func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer func() { _ = events.Close() }()
	defer context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })()
	// Any rename counts: Kubernetes renames the directory that the file is a
	// link into.
	const mask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	for {
		_, err := unix.InotifyAddWatch(fd, filepath.Dir(path), mask)
		changed()
		if err == nil {
			err = wait(events, changed)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOSPC), errors.Is(err, errors.ErrUnsupported):
			return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		}
	}
}

// wait calls changed at each event, until the directory is gone.
func wait(events *os.File, changed func()) error {
	buffer := make([]byte, 16<<10)
	for {
		n, err := events.Read(buffer)
		if err != nil {
			return err
		}
		gone := false
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[at]))
			gone = gone || e.Mask&unix.IN_IGNORED != 0
			at += unix.SizeofInotifyEvent + int(e.Len)
		}
		changed()
		if gone {
			return os.ErrNotExist
		}
	}
}
