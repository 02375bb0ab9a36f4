package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/client"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// keyResult is what is printed of a key that was put or got.
type keyResult struct {
	Key     string `json:"key"`
	Status  string `json:"status"`
	Source  string `json:"source,omitempty"`
	Size    uint64 `json:"size"`
	Fetched uint64 `json:"fetched"`
	Joined  uint64 `json:"joined"`
	Reason  string `json:"reason,omitempty"`
}

func (r keyResult) row() []string {
	return []string{r.Key, r.Status, r.Source, fmt.Sprint(r.Size), fmt.Sprint(r.Fetched), r.Reason}
}

var keyColumns = []string{"key", "status", "source", "size", "fetched", "reason"}

func resultOf(key string, r *enginev1.Result) keyResult {
	out := keyResult{Key: key, Status: client.StatusName(r.GetStatus()), Size: r.GetSize(), Fetched: r.GetFetched(), Joined: r.GetJoined(), Reason: r.GetReason()}
	if r.GetStatus() == enginev1.KeyStatus_KEY_STATUS_HIT {
		out.Source = client.SourceName(r.GetSource())
	}
	return out
}

// err is what became of a key that was not put or got.
func (r keyResult) err(verb string) error {
	text := fmt.Sprintf("%s %q: %s", verb, r.Key, r.Status)
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return errors.New(text)
}

func (f *ctl) newPut() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "put KEY FILE",
		Short: "Store a file, or standard input (-), under a key",
		Long: `Store a file, or standard input (-), under a key. A key that is there keeps the bytes that it has: the answer is "exists",
without a look at the new ones, or "conflict" and exit status 1 where their number differs.`,
		Args: args(2, 2, "KEY and FILE (or -)"),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, a []string) error {
			in, size, err := source(c.InOrStdin(), a[1])
			if err != nil {
				return err
			}
			defer in.Close()
			r, err := node.Put(ctx, client.PutObject{Namespace: f.namespace, Key: a[0], Size: size, To: to}, in)
			if err != nil {
				return err
			}
			result := resultOf(a[0], r)
			if !client.OK(r.GetStatus()) {
				return result.err("put")
			}
			return f.print(c.OutOrStdout(), result, keyColumns, [][]string{result.row()})
		}),
	}
	c.Flags().StringVar(&to, "to", "", "id of the node that is to have it; none: this one (default none)")
	return c
}

// source is what is put, and how long it is. Standard input has no length, so it is read first.
func source(stdin io.Reader, name string) (io.ReadCloser, uint64, error) {
	if name == "-" {
		b, err := io.ReadAll(stdin)
		return io.NopCloser(bytes.NewReader(b)), uint64(len(b)), err
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: no regular file; - is standard input", name)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, uint64(info.Size()), nil
}

func (f *ctl) newGet() *cobra.Command {
	var ranges []string
	var file string
	c := &cobra.Command{
		Use:   "get KEY",
		Short: "Read an object, or ranges of it, one behind the other",
		Args:  args(1, 1, "KEY"),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, a []string) error {
			var parsed []client.Range
			for _, text := range ranges {
				r, err := parseRange(text)
				if err != nil {
					return err
				}
				parsed = append(parsed, r)
			}
			if file == "" {
				_, err := f.receive(ctx, node, a[0], parsed, c.OutOrStdout())
				return err
			}
			var result keyResult
			err := whole(file, func(w io.Writer) (err error) {
				result, err = f.receive(ctx, node, a[0], parsed, w)
				return err
			})
			if err != nil {
				return err
			}
			return f.print(c.OutOrStdout(), result, keyColumns, [][]string{result.row()})
		}),
	}
	c.Flags().StringArrayVar(&ranges, "range", nil, "OFF:LEN, as bytes or with KiB, MiB, GiB; may be given more than once; none: the whole object (default none)")
	c.Flags().StringVarP(&file, "file", "o", "", "write to this file, whole or not at all; none: standard output (default none)")
	return c
}

func parseRange(text string) (client.Range, error) {
	off, length, ok := strings.Cut(text, ":")
	o, err := bench.ParseBytes(off)
	n, lerr := bench.ParseBytes(length)
	if !ok || err != nil || lerr != nil || n == 0 || o+n < o {
		return client.Range{}, &bench.OptionError{Flag: "--range", Value: text, Want: "want OFF:LEN, in bytes or with KiB, MiB or GiB, with LEN of 1 or more and an end below 2^64"}
	}
	return client.Range{Off: o, Len: n}, nil
}

// receive writes the bytes of a hit to w.
func (f *ctl) receive(ctx context.Context, node *client.Node, key string, ranges []client.Range, w io.Writer) (keyResult, error) {
	r, err := node.Get(ctx, f.namespace, key, ranges, w)
	if err != nil {
		return keyResult{}, err
	}
	result := resultOf(key, r)
	if r.GetStatus() != client.Hit {
		return result, result.err("get")
	}
	return result, nil
}

// whole writes a file beside name and renames it, so that there is never a part of one. A pipe or a device is written to: renamed to, it
// would be no pipe or device any more.
func whole(name string, write func(io.Writer) error) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	t, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	err = write(t)
	if cerr := t.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(t.Name(), name)
	}
	if err != nil {
		os.Remove(t.Name())
	}
	return err
}

// foundKey is what is printed of a key that was looked for or removed.
type foundKey struct {
	Key        string   `json:"key"`
	Found      bool     `json:"found"`
	Unanswered []string `json:"unanswered,omitempty"`
}

func (f *ctl) newExists() *cobra.Command {
	var hold time.Duration
	c := &cobra.Command{
		Use:   "exists KEY...",
		Short: "Say which keys are at this node or at a peer; status 1 when one is not",
		Args:  args(1, -1, "KEY..."),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, a []string) error {
			if hold < 0 || hold > time.Hour {
				return &bench.OptionError{Flag: "--hold", Value: hold.String(), Want: "want 0 to 1h"}
			}
			found, leading, err := node.Exists(ctx, f.namespace, a, hold)
			if err != nil {
				return err
			}
			out := struct {
				Keys    []foundKey `json:"keys"`
				Leading int        `json:"leading"`
			}{Leading: leading}
			var rows [][]string
			missing := 0
			for i, key := range a {
				if !found[i] {
					missing++
				}
				out.Keys = append(out.Keys, foundKey{Key: key, Found: found[i]})
				rows = append(rows, []string{key, strconv.FormatBool(found[i])})
			}
			if err := f.print(c.OutOrStdout(), out, []string{"key", "found"}, rows); err != nil {
				return err
			}
			if missing > 0 {
				return fmt.Errorf("%d of %d keys are not there, the first %d are", missing, len(a), leading)
			}
			return nil
		}),
	}
	c.Flags().DurationVar(&hold, "hold", 0, "keep what is found on this node for so long, within its bounds (default 0s)")
	return c
}

func (f *ctl) newRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove KEY...",
		Short: "Drop objects here and at every peer; status 1 when a peer did not answer",
		Args:  args(1, -1, "KEY..."),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, a []string) error {
			removals, err := node.Remove(ctx, f.namespace, a)
			if err != nil {
				return err
			}
			var out []foundKey
			var rows [][]string
			var silent []string
			for i, key := range a {
				r := removals[i]
				out = append(out, foundKey{Key: key, Found: r.Found, Unanswered: r.Unanswered})
				rows = append(rows, []string{key, strconv.FormatBool(r.Found), strings.Join(r.Unanswered, ",")})
				silent = append(silent, r.Unanswered...)
			}
			if err := f.print(c.OutOrStdout(), out, []string{"key", "removed", "unanswered"}, rows); err != nil {
				return err
			}
			if len(silent) > 0 {
				return fmt.Errorf("peers that may still have copies did not answer: %s", strings.Join(silent, ", "))
			}
			return nil
		}),
	}
}

func (f *ctl) newSize() *cobra.Command {
	return &cobra.Command{
		Use:   "size KEY",
		Short: "Print the size of an object that is here or at a peer",
		Args:  args(1, 1, "KEY"),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, a []string) error {
			size, err := node.Size(ctx, f.namespace, a[0])
			if err != nil {
				return err
			}
			out := struct {
				Key  string `json:"key"`
				Size uint64 `json:"size"`
			}{a[0], size}
			return f.print(c.OutOrStdout(), out, []string{"key", "size"}, [][]string{{out.Key, fmt.Sprint(out.Size)}})
		}),
	}
}
