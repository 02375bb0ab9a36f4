package shm

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// thisHost reads which boot this is, and which network namespace: an abstract socket's name means something within it only.
func thisHost() (h host, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return h, fmt.Errorf("boot id: %w", err)
	}
	boot, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(boot) != len(h.boot) {
		return h, fmt.Errorf("boot id %q, want 32 digits", text)
	}
	copy(h.boot[:], boot)
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return h, fmt.Errorf("network namespace: %w", err)
	}
	h.net = st.Ino
	return h, nil
}
