"""The console: pages in the browser that show and change by the API what any other program could."""
