// Command rank is a client of a node for the tests that kill it. It reads the node's socket from standard input, takes everything that a
// client can have, says "ready", and then reads and writes until it is killed.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spanpool/spanpool/client"
)

const (
	objects    = 32
	objectSize = 128 << 10
	memory     = 8 << 20
)

func main() {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err == nil {
		err = run(context.Background(), strings.TrimSpace(line))
	}
	fmt.Println("ended:", err)
}

func run(ctx context.Context, socket string) error {
	c, err := client.Dial(ctx, socket, client.Options{Namespace: "rank", Name: "rank"})
	if err != nil {
		return err
	}
	own, err := c.NewMemory(ctx, memory)
	if err != nil {
		return err
	}
	if _, err := c.Allocate(ctx, memory); err != nil {
		return err
	}
	var keys []string
	for i := range objects {
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	h, err := c.NewHandle(keys, nil)
	if err != nil {
		return err
	}
	if err := store(ctx, c, own, keys); err != nil {
		return err
	}
	session, err := c.OpenRead(ctx)
	if err != nil {
		return err
	}
	w, _, err := c.OpenWrite(ctx, client.Keys{Names: []string{"never committed"}}, objectSize)
	if err != nil {
		return err
	}
	whole := client.Pattern{Off: []uint64{0}, Len: []uint64{objectSize}, Region: []*client.Region{own}, Base: []uint64{0}, Stride: []uint64{objectSize}}
	for i := range objects {
		whole.Row = append(whole.Row, uint64(i))
	}
	if a, err := session.GetRanges(ctx, client.Part{Keys: client.Keys{Handle: h}, Pattern: &whole}); err != nil || client.Failed(a) != nil {
		return fmt.Errorf("%w: %v", err, client.Failed(a))
	}
	if _, err := w.WriteRanges(ctx, client.Part{Keys: client.Keys{Names: []string{"never committed"}}, Lists: &client.Lists{End: []uint32{1},
		Off: []uint64{0}, Len: []uint64{1}, Region: []*client.Region{own}, RegionOff: []uint64{0}}}); err != nil {
		return err
	}
	fmt.Println("ready")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				if _, err := session.GetRanges(ctx, client.Part{Keys: client.Keys{Handle: h}, Pattern: &whole}); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// store puts what is not there yet.
func store(ctx context.Context, c *client.Client, own *client.Region, keys []string) error {
	p := client.Pattern{Off: []uint64{0}, Len: []uint64{objectSize}, Region: []*client.Region{own}, Base: []uint64{0}, Stride: []uint64{objectSize}}
	for i := range keys {
		p.Row = append(p.Row, uint64(i))
	}
	a, err := c.PutRanges(ctx, client.PutOptions{}, client.Part{Keys: client.Keys{Names: keys}, Pattern: &p, Sizes: []uint64{objectSize}})
	if err != nil {
		return err
	}
	return client.Failed(a)
}
