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
	out := keyResult{Key: key, Status: statusName(r.GetStatus()), Size: r.GetSize(), Fetched: r.GetFetched(), Joined: r.GetJoined(), Reason: r.GetReason()}
	if r.GetStatus() == enginev1.KeyStatus_KEY_STATUS_HIT {
		out.Source = sourceName(r.GetSource())
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
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node enginev1.EngineClient, a []string) error {
			in, size, err := source(c.InOrStdin(), a[1])
			if err != nil {
				return err
			}
			defer in.Close()
			h := &enginev1.PutHeader{Namespace: []byte(f.namespace), Key: []byte(a[0]), Size: size, To: to}
			r, err := send(ctx, node, h, in)
			if err != nil {
				return f.failed(err)
			}
			result := resultOf(a[0], r)
			if s := r.GetStatus(); s != enginev1.KeyStatus_KEY_STATUS_STORED && s != enginev1.KeyStatus_KEY_STATUS_EXISTS {
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

// chunkBytes is what a message carries.
const chunkBytes = 256 << 10

func send(ctx context.Context, node enginev1.EngineClient, h *enginev1.PutHeader, in io.Reader) (*enginev1.Result, error) {
	stream, err := node.Put(ctx)
	if err != nil {
		return nil, err
	}
	m, b := &enginev1.PutRequest{Header: h}, make([]byte, chunkBytes)
	for {
		n, err := io.ReadFull(in, b)
		m.Data = b[:n]
		if n > 0 || m.Header != nil {
			if stream.Send(m) != nil {
				break // the answer says why
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		m = &enginev1.PutRequest{}
	}
	reply, err := stream.CloseAndRecv()
	return reply.GetResult(), err
}

func (f *ctl) newGet() *cobra.Command {
	var ranges []string
	var file string
	c := &cobra.Command{
		Use:   "get KEY",
		Short: "Read an object, or ranges of it, one behind the other",
		Args:  args(1, 1, "KEY"),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node enginev1.EngineClient, a []string) error {
			req := &enginev1.GetRequest{Namespace: []byte(f.namespace), Key: []byte(a[0])}
			for _, text := range ranges {
				r, err := parseRange(text)
				if err != nil {
					return err
				}
				req.Ranges = append(req.Ranges, r)
			}
			if file == "" {
				_, err := f.receive(ctx, node, req, c.OutOrStdout())
				return err
			}
			var result keyResult
			err := whole(file, func(w io.Writer) (err error) {
				result, err = f.receive(ctx, node, req, w)
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

func parseRange(text string) (*enginev1.Range, error) {
	off, length, ok := strings.Cut(text, ":")
	o, err := bench.ParseBytes(off)
	n, lerr := bench.ParseBytes(length)
	if !ok || err != nil || lerr != nil || n == 0 || o+n < o {
		return nil, &bench.OptionError{Flag: "--range", Value: text, Want: "want OFF:LEN with LEN of 1 or more and an end below 2^64"}
	}
	return &enginev1.Range{Off: o, Len: n}, nil
}

// receive writes the bytes of a hit to w.
func (f *ctl) receive(ctx context.Context, node enginev1.EngineClient, req *enginev1.GetRequest, w io.Writer) (keyResult, error) {
	stream, err := node.Get(ctx, req)
	if err != nil {
		return keyResult{}, f.failed(err)
	}
	var result keyResult
	for first := true; ; first = false {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) && !first {
			return result, nil
		}
		if err != nil {
			return result, f.failed(err)
		}
		if first {
			result = resultOf(string(req.GetKey()), m.GetResult())
			if m.GetResult().GetStatus() != enginev1.KeyStatus_KEY_STATUS_HIT {
				return result, result.err("get")
			}
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return result, err
		}
	}
}

// whole writes a file beside name and renames it, so that there is never a part of one.
func whole(name string, write func(io.Writer) error) error {
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

func keysOf(names []string) [][]byte {
	out := make([][]byte, len(names))
	for i, n := range names {
		out[i] = []byte(n)
	}
	return out
}

func (f *ctl) newExists() *cobra.Command {
	var hold time.Duration
	c := &cobra.Command{
		Use:   "exists KEY...",
		Short: "Say which keys are at this node or at a peer; status 1 when one is not",
		Args:  args(1, -1, "KEY..."),
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node enginev1.EngineClient, a []string) error {
			if hold < 0 || hold > time.Hour {
				return &bench.OptionError{Flag: "--hold", Value: hold.String(), Want: "want 0 to 1h"}
			}
			reply, err := node.Exists(ctx, &enginev1.ExistsRequest{Namespace: []byte(f.namespace), Keys: keysOf(a), HoldNanos: uint64(hold)})
			if err != nil {
				return f.failed(err)
			}
			if len(reply.GetFound()) != len(a) {
				return fmt.Errorf("exists: %d answers for %d keys", len(reply.GetFound()), len(a))
			}
			out := struct {
				Keys    []foundKey `json:"keys"`
				Leading uint32     `json:"leading"`
			}{Leading: reply.GetLeading()}
			var rows [][]string
			missing := 0
			for i, key := range a {
				found := reply.GetFound()[i]
				if !found {
					missing++
				}
				out.Keys = append(out.Keys, foundKey{Key: key, Found: found})
				rows = append(rows, []string{key, strconv.FormatBool(found)})
			}
			if err := f.print(c.OutOrStdout(), out, []string{"key", "found"}, rows); err != nil {
				return err
			}
			if missing > 0 {
				return fmt.Errorf("%d of %d keys are not there, the first %d are", missing, len(a), reply.GetLeading())
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
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node enginev1.EngineClient, a []string) error {
			reply, err := node.Remove(ctx, &enginev1.RemoveRequest{Namespace: []byte(f.namespace), Keys: keysOf(a)})
			if err != nil {
				return f.failed(err)
			}
			if len(reply.GetRemovals()) != len(a) {
				return fmt.Errorf("remove: %d answers for %d keys", len(reply.GetRemovals()), len(a))
			}
			var out []foundKey
			var rows [][]string
			var silent []string
			for i, key := range a {
				r := reply.GetRemovals()[i]
				out = append(out, foundKey{Key: key, Found: r.GetFound(), Unanswered: r.GetUnanswered()})
				rows = append(rows, []string{key, strconv.FormatBool(r.GetFound()), strings.Join(r.GetUnanswered(), ",")})
				silent = append(silent, r.GetUnanswered()...)
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
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node enginev1.EngineClient, a []string) error {
			reply, err := node.Size(ctx, &enginev1.SizeRequest{Namespace: []byte(f.namespace), Key: []byte(a[0])})
			if err != nil {
				return f.failed(err)
			}
			out := struct {
				Key  string `json:"key"`
				Size uint64 `json:"size"`
			}{a[0], reply.GetSize()}
			return f.print(c.OutOrStdout(), out, []string{"key", "size"}, [][]string{{out.Key, fmt.Sprint(out.Size)}})
		}),
	}
}
